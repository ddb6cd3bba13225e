// What a handshake makes: a connection to one process of a group.
#pragma once

#include <string>

#include "bootstrap/sockets.h"

namespace a2a::tcp {

// Both ends have proved that they know the secret.
struct AuthenticatedSocket {
  Socket socket;
  std::string who;    // for the texts of errors: "pid 17 at 10.0.0.3"
  std::string early;  // bytes that came with the handshake
};

}  // namespace a2a::tcp
