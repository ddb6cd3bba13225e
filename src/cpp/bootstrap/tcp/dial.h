// One attempt to connect to a listener, and to prove to each other that both ends know the secret. acceptor.h has the
// other end. Not public.
#pragma once

#include <string>
#include <string_view>

#include "bootstrap/tcp/tcp_socket.h"

namespace a2a {

// Never blocks: the caller polls for wanted(), and then calls advance().
class Dial {
 public:
  enum class State {
    connecting,
    greeting,   // it waits for the other end's challenge
    proving,    // it waits for the other end's first frame
    welcomed,   // channel() is authenticated
    refused,    // refusal() is the error that the other end gives
    failed,     // cause() is the error of the connection
    no_answer,  // whoever listens there sent something else, or hung up
    rejected,   // whoever listens there does not take the proof, or has none of its own
  };

  // `secret` and `who` are what wire::make_proof() takes.
  Dial(const SocketAddress& address, std::string_view secret, wire::Introduction who);

  pollfd wanted() const;
  // Goes on as far as the socket allows. Returns the state.
  State advance();
  State state() const { return state_; }
  bool going() const { return state_ <= State::proving; }
  int cause() const { return cause_; }
  Channel& channel() { return channel_; }
  const Error& refusal() const { return refusal_; }
  // The socket until it is a channel, for checks of the other end's user.
  int fd() const { return socket_.open() ? socket_.fd() : channel_.fd(); }

 private:
  State connected();
  State greeted();
  State answered();

  State state_ = State::connecting;
  Socket socket_;
  std::string secret_;
  wire::Introduction who_;
  int cause_ = 0;
  std::string hello_, challenge_;
  Channel channel_;
  Error refusal_{Code::aborted, ""};
};

}  // namespace a2a
