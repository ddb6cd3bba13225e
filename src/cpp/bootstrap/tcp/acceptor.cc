#include "bootstrap/tcp/acceptor.h"

#include <cerrno>

namespace a2a {
namespace {

constexpr size_t kMostPending = 128;
constexpr double kHandshakeSeconds = 5;
constexpr int kMostAtOnce = 32;  // connections accepted in one round, so that handshakes go on meanwhile

}  // namespace

void Acceptor::add_to(std::vector<pollfd>& fds) const {
  fds.push_back({listener_.fd(), POLLIN, 0});
  for (const Pending& pending : pending_) fds.push_back({pending.socket.fd(), POLLIN, 0});
}

std::vector<AcceptedRank> Acceptor::serve(std::span<const pollfd> fds) {
  std::vector<AcceptedRank> accepted;
  const auto now = Deadline::Clock::now();
  std::deque<Pending> staying;
  for (size_t i = 0; i < pending_.size(); ++i) {
    Pending& pending = pending_[i];
    const bool stays = fds[1 + i].revents == 0 ? !pending.deadline.passed(now) : receive(pending, accepted);
    if (stays) staying.push_back(std::move(pending));
  }
  pending_ = std::move(staying);
  // New connections come last: an accepted one may push out the oldest, whose proof may have arrived in this round.
  if (fds[0].revents != 0) accept_waiting();
  return accepted;
}

void Acceptor::accept_waiting() {
  for (int i = 0; i < kMostAtOnce; ++i) {
    SocketAddress from;
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
      ++no_ranks_;
    }
    pending_.push_back({std::move(socket), from.host(), Deadline::after_seconds(kHandshakeSeconds), "", ""});
  }
}

bool Acceptor::receive(Pending& pending, std::vector<AcceptedRank>& accepted) {
  // Reads one byte more than expected, to notice a connection that sends more.
  const bool challenged = !pending.greetings.empty();
  const size_t wanted = challenged ? wire::kProofBytes : wire::kGreetingBytes;
  const bool open = read_some(pending.socket.fd(), wanted + 1 - pending.received.size(), pending.received);
  if (!challenged && !wire::may_be_greeting(pending.received)) return ++no_ranks_, false;
  if (pending.received.size() > wanted) return ++no_ranks_, false;
  if (pending.received.size() == wanted) return challenged ? authenticate(pending, accepted) : challenge(pending);
  if (!open) ++no_ranks_;
  return open && !pending.deadline.passed();
}

bool Acceptor::challenge(Pending& pending) {
  std::string ours = wire::greeting(new_nonce());
  pending.greetings = std::move(pending.received) + ours;
  pending.received.clear();
  // The socket's buffer is empty, so a write that is not complete now would never be.
  return write_some(pending.socket.fd(), ours) && ours.empty();
}

bool Acceptor::authenticate(Pending& pending, std::vector<AcceptedRank>& accepted) {
  auto who = wire::check_proof(secret_, pending.greetings, pending.received);
  if (!who) return ++without_secret_, false;
  const wire::Keys keys = wire::session_keys(secret_, pending.greetings, pending.received);
  Channel channel(std::move(pending.socket), keys.from_rank_0, keys.to_rank_0);
  accepted.push_back({std::move(channel), std::move(*who), std::move(pending.host)});
  return false;
}

std::string Acceptor::refusals() const {
  if (without_secret_ + no_ranks_ == 0) return "";
  return "; refused: " + std::to_string(without_secret_) + " connections without the job's secret, " +
         std::to_string(no_ranks_) + " that were no rank's";
}

}  // namespace a2a
