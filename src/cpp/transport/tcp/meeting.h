// How the processes of a group connect.
#pragma once

#include <string>

#include "bootstrap/sockets.h"

namespace a2a::tcp {

// A connection to a process that has proved to know the secret, as this one has to it.
struct Link {
  Socket socket;
  std::string who;    // for messages: "pid 17 at 10.0.0.3"
  std::string heard;  // what it has said already
};

}  // namespace a2a::tcp
