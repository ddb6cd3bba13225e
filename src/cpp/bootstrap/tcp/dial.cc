#include "bootstrap/tcp/dial.h"

#include <cerrno>

namespace a2a {

Dial::Dial(const SocketAddress& address, std::string_view secret, wire::Introduction who)
    : socket_(begin_connecting(address)), secret_(secret), who_(std::move(who)) {
  if (socket_.open()) return;
  state_ = State::failed;
  cause_ = errno;
}

pollfd Dial::wanted() const { return {fd(), static_cast<short>(state_ == State::connecting ? POLLOUT : POLLIN), 0}; }

Dial::State Dial::advance() {
  for (State before = State::failed; going() && state_ != before;) {
    before = state_;
    switch (state_) {
      case State::connecting:
        state_ = connected();
        break;
      case State::greeting:
        state_ = greeted();
        break;
      default:
        state_ = answered();
    }
  }
  return state_;
}

Dial::State Dial::connected() {
  pollfd writable{socket_.fd(), POLLOUT, 0};
  if (::poll(&writable, 1, 0) == 0) return State::connecting;
  if ((cause_ = connecting_failed(socket_)) != 0) return State::failed;
  hello_ = wire::greeting(new_nonce());
  std::string unsent = hello_;  // write_some() removes what it has written; the socket's buffer is empty
  return write_some(socket_.fd(), unsent) ? State::greeting : State::no_answer;
}

Dial::State Dial::greeted() {
  const bool open = read_some(socket_.fd(), wire::kGreetingBytes - challenge_.size(), challenge_);
  if (!wire::may_be_greeting(challenge_)) return State::no_answer;
  if (challenge_.size() < wire::kGreetingBytes) return open ? State::greeting : State::no_answer;
  const std::string greetings = hello_ + challenge_;
  const std::string proof = wire::make_proof(secret_, greetings, who_);
  const wire::Keys keys = wire::session_keys(secret_, greetings, proof);
  std::string unsent = proof;
  if (!write_some(socket_.fd(), unsent)) return State::no_answer;
  channel_ = Channel(std::move(socket_), keys.to_rank_0, keys.from_rank_0);
  return State::proving;
}

Dial::State Dial::answered() {
  const auto frame = channel_.read();
  if (!frame) return channel_.gone() || channel_.forged() ? State::rejected : State::proving;
  if (frame->kind != wire::PieceKind::refusal) return State::welcomed;
  refusal_ = wire::unpack_refusal(frame->payload);
  return State::refused;
}

}  // namespace a2a
