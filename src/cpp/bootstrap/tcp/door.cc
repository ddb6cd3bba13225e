#include "bootstrap/tcp/door.h"

#include <cerrno>

namespace a2a {
namespace {

constexpr size_t kMostStrangers = 128;
constexpr double kPatienceSeconds = 5;
constexpr int kMostAtOnce = 32;  // connections accepted before those that wait are heard again

}  // namespace

void Door::watch(std::vector<pollfd>& fds) const {
  fds.push_back({listener_.fd(), POLLIN, 0});
  for (const Stranger& s : strangers_) fds.push_back({s.socket.fd(), POLLIN, 0});
}

std::vector<Newcomer> Door::serve(std::span<const pollfd> fds) {
  std::vector<Newcomer> admitted;
  const auto now = Deadline::Clock::now();
  std::deque<Stranger> staying;
  for (size_t i = 0; i < strangers_.size(); ++i) {
    Stranger& s = strangers_[i];
    const bool stays = fds[1 + i].revents == 0 ? !s.patience.passed(now) : hear(s, admitted);
    if (stays) staying.push_back(std::move(s));
  }
  strangers_ = std::move(staying);
  // After those who have spoken: a proof that has arrived is heard, however many knock.
  if (fds[0].revents != 0) let_in();
  return admitted;
}

void Door::let_in() {
  for (int i = 0; i < kMostAtOnce; ++i) {
    Place from;
    Socket socket = accept_from(listener_, from);
    if (!socket.open()) {
      if ((errno == EMFILE || errno == ENFILE) && strangers_.empty()) socket_failure("cannot accept a rank");
      if (errno == EMFILE || errno == ENFILE) {
        strangers_.pop_front();
      } else if (accepting_refused(errno)) {
        socket_failure("cannot accept a rank");
      }
      return;
    }
    if (strangers_.size() == kMostStrangers) {
      strangers_.pop_front();
      ++nonsense_;
    }
    strangers_.push_back({std::move(socket), from.host(), Deadline::after_seconds(kPatienceSeconds), "", ""});
  }
}

bool Door::hear(Stranger& stranger, std::vector<Newcomer>& admitted) {
  // One byte more than it should say, to notice who says more.
  const bool introduced = !stranger.greetings.empty();
  const size_t wanted = introduced ? wire::kProofBytes : wire::kGreetingBytes;
  const bool there = read_some(stranger.socket.fd(), wanted + 1 - stranger.heard.size(), stranger.heard);
  if (!introduced && !wire::may_be_greeting(stranger.heard)) return ++nonsense_, false;
  if (stranger.heard.size() > wanted) return ++nonsense_, false;
  if (stranger.heard.size() == wanted) return introduced ? admit(stranger, admitted) : challenge(stranger);
  if (!there) ++nonsense_;
  return there && !stranger.patience.passed();
}

bool Door::challenge(Stranger& stranger) {
  std::string ours = wire::greeting(new_nonce());
  stranger.greetings = std::move(stranger.heard) + ours;
  stranger.heard.clear();
  // The socket's buffer is empty: what it does not take now it never will.
  return write_some(stranger.socket.fd(), ours) && ours.empty();
}

bool Door::admit(Stranger& stranger, std::vector<Newcomer>& admitted) {
  auto who = wire::check_proof(secret_, stranger.greetings, stranger.heard);
  if (!who) return ++without_secret_, false;
  const wire::Keys keys = wire::session_keys(secret_, stranger.greetings, stranger.heard);
  Channel channel(std::move(stranger.socket), keys.from_rank_0, keys.to_rank_0);
  admitted.push_back({std::move(channel), std::move(*who), std::move(stranger.host)});
  return false;
}

std::string Door::account() const {
  if (without_secret_ + nonsense_ == 0) return "";
  return "; refused: " + std::to_string(without_secret_) + " connections without the job's secret, " +
         std::to_string(nonsense_) + " that were no rank's";
}

}  // namespace a2a
