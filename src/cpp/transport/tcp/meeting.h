// The connections of a group's processes.
#pragma once

#include <string>

#include "bootstrap/sockets.h"

namespace a2a::tcp {

// A connection. Both ends have proved that they know the secret.
struct Link {
  Socket socket;
  std::string who;    // for the texts of errors: "pid 17 at 10.0.0.3"
  std::string heard;  // bytes that have come already
};

}  // namespace a2a::tcp
