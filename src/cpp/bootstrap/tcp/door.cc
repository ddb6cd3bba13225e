#include "bootstrap/tcp/door.h"

#include <cerrno>

namespace a2a {
namespace {

constexpr size_t kMostPending = 128;
constexpr double kPatienceSeconds = 5;
constexpr int kMostAtOnce = 32;  // accepted before connections that have sent something are served

}  // namespace

void Door::watch(std::vector<pollfd>& fds) const {
  fds.push_back({listener_.fd(), POLLIN, 0});
  for (const Pending& s : pending_) fds.push_back({s.socket.fd(), POLLIN, 0});
}

std::vector<Newcomer> Door::serve(std::span<const pollfd> fds) {
  std::vector<Newcomer> admitted;
  const auto now = Deadline::Clock::now();
  std::deque<Pending> staying;
  for (size_t i = 0; i < pending_.size(); ++i) {
    Pending& s = pending_[i];
    const bool stays = fds[1 + i].revents == 0 ? !s.patience.passed(now) : hear(s, admitted);
    if (stays) staying.push_back(std::move(s));
  }
  pending_ = std::move(staying);
  // Last: however many connections come, a proof that has arrived is read first.
  if (fds[0].revents != 0) let_in();
  return admitted;
}

void Door::let_in() {
  for (int i = 0; i < kMostAtOnce; ++i) {
    Place from;
    Socket socket = accept_from(listener_, from);
    if (!socket.open()) {
      if ((errno == EMFILE || errno == ENFILE) && pending_.empty()) socket_failure("cannot accept a rank");
      if (errno == EMFILE || errno == ENFILE) {
        pending_.pop_front();
      } else if (accepting_refused(errno)) {
        socket_failure("cannot accept a rank");
      }
      return;
    }
    if (pending_.size() == kMostPending) {
      pending_.pop_front();
      ++nonsense_;
    }
    pending_.push_back({std::move(socket), from.host(), Deadline::after_seconds(kPatienceSeconds), "", ""});
  }
}

bool Door::hear(Pending& pending, std::vector<Newcomer>& admitted) {
  // One byte more than expected, to notice a connection that sends more.
  const bool introduced = !pending.greetings.empty();
  const size_t wanted = introduced ? wire::kProofBytes : wire::kGreetingBytes;
  const bool there = read_some(pending.socket.fd(), wanted + 1 - pending.heard.size(), pending.heard);
  if (!introduced && !wire::may_be_greeting(pending.heard)) return ++nonsense_, false;
  if (pending.heard.size() > wanted) return ++nonsense_, false;
  if (pending.heard.size() == wanted) return introduced ? admit(pending, admitted) : challenge(pending);
  if (!there) ++nonsense_;
  return there && !pending.patience.passed();
}

bool Door::challenge(Pending& pending) {
  std::string ours = wire::greeting(new_nonce());
  pending.greetings = std::move(pending.heard) + ours;
  pending.heard.clear();
  // The socket's buffer is empty, so a write that is not complete now would never be.
  return write_some(pending.socket.fd(), ours) && ours.empty();
}

bool Door::admit(Pending& pending, std::vector<Newcomer>& admitted) {
  auto who = wire::check_proof(secret_, pending.greetings, pending.heard);
  if (!who) return ++without_secret_, false;
  const wire::Keys keys = wire::session_keys(secret_, pending.greetings, pending.heard);
  Channel channel(std::move(pending.socket), keys.from_rank_0, keys.to_rank_0);
  admitted.push_back({std::move(channel), std::move(*who), std::move(pending.host)});
  return false;
}

std::string Door::account() const {
  if (without_secret_ + nonsense_ == 0) return "";
  return "; refused: " + std::to_string(without_secret_) + " connections without the job's secret, " +
         std::to_string(nonsense_) + " that were no rank's";
}

}  // namespace a2a
