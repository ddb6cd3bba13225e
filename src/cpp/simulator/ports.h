// The two ways in which messages use ports.
#pragma once

#include <functional>
#include <vector>

#include "a2a/simulator.h"

namespace a2a::simulator {

// What a source sends, in order. Sources are the ranks, or hosts that send for them.
struct Send {
  int to = 0;    // a source
  int port = 0;  // the host of `to`
  uint64_t bytes = 0;
  double work = 0;  // bytes, with what the message costs expressed in bytes
};

struct Source {
  int port = 0;  // its host
  std::vector<Send> sends;
};

// Called for each message in the order in which they end.
using Ended = std::function<void(int from, const Send& send, double begin, double end)>;

// Return when all ports are idle. At most `window` sends of a source are under way, or are considered, at a time.
double run_single_ports(std::vector<Source>& sources, int ports, double link, int window, const Ended& ended);
double run_shared_ports(std::vector<Source>& sources, int ports, double link, int window, double longest,
                        const Ended& ended);

}  // namespace a2a::simulator
