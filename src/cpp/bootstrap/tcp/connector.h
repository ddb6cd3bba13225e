// The connecting side of a handshake; acceptor.h has the accepting side. Not public.
#pragma once

#include <functional>

#include "bootstrap/tcp/tcp_socket.h"

namespace a2a {

struct ConnectArguments {
  std::string peer, address;             // for the texts of errors: "rank 0", "node7:29501"
  std::vector<SocketAddress> addresses;  // in the order of the attempts
  std::string secret;
  std::string job;
  Rank rank = 0;
  int size = 0;
  std::function<void()> meanwhile;  // called every few milliseconds; throws to give up
};

// Returns an authenticated connection. Tries until it is accepted: the peer may not listen yet, or connections of
// strangers may keep it from answering. Throws Error(timeout) at the deadline, Error(invalid_argument) when the two
// have different secrets, and the error of a refusal.
Channel connect_authenticated(const ConnectArguments& arguments, Deadline deadline);

}  // namespace a2a
