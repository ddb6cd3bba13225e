// The other side of a Door: how a rank gets in. Not public.
#pragma once

#include <functional>

#include "bootstrap/tcp/tcp_socket.h"

namespace a2a {

struct Visit {
  std::string whom, address;  // for messages: "rank 0", "node7:29501"
  std::vector<Place> places;  // in the order in which to try
  std::string secret;
  std::string job;
  Rank rank = 0;
  int size = 0;
  std::function<void()> meanwhile;  // called every few milliseconds; may throw to give up
};

// A connection on which the two know each other. Knocks until it is let in: nobody may listen there yet, or others may
// be in the way. Throws Error(timeout) at the deadline, Error(invalid_argument) when the two do not have the same
// secret, and whatever the other side refuses this rank with.
Channel knock(const Visit& visit, Deadline deadline);

}  // namespace a2a
