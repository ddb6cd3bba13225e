// What this machine is, as far as the way of bytes between ranks depends on it.
#pragma once

#include <cstddef>
#include <optional>

namespace a2a::shm {

// What this host can do for a group of ranks.
struct Surroundings {
  int ranks = 1;
  int cpus = 1;  // allowed to the ranks together, by affinity and control group
  bool oversubscribed() const { return ranks > cpus; }
};

// Throws Error(invalid_argument) when a variable of this transport makes no sense: before ranks meet, and not in the
// middle of an exchange, where some of them are read.
void check_variables();

struct Machine {
  Surroundings surroundings;
  size_t cache = size_t{32} << 20;  // bytes of the last level before memory, of all the ranks' CPUs together

  // What the user has set (docs/transports.md): A2A_SHM_DIRECT_MIN, A2A_SHM_CMA_MIN, A2A_SHM_STREAM_MIN, A2A_SHM_PUT.
  std::optional<size_t> direct_min, cma_min, stream_min;
  std::optional<bool> put;
  // Whether the calling thread may be moved to another of its CPUs, where ranks share them: A2A_SHM_SPREAD.
  bool spread = false;

  // Of this machine and this process's environment. Throws Error(invalid_argument) when a variable makes no sense.
  static Machine here(const Surroundings& surroundings);
};

}  // namespace a2a::shm
