// The properties of this machine and of the user's settings that decide how bytes travel.
#pragma once

#include <cstddef>
#include <optional>

namespace a2a::shm {

inline constexpr size_t kKiB = 1024, kMiB = kKiB * kKiB;

// The CPUs that a group of ranks has on this host.
struct Surroundings {
  int ranks = 1;
  int cpus = 1;  // that the ranks may use together, by affinity and control group
  bool oversubscribed() const { return ranks > cpus; }
};

// Throws Error(invalid_argument) for an invalid environment variable of this transport. Call before ranks meet: some of
// these variables are read only in the middle of an exchange.
void check_variables();

struct Machine {
  Surroundings surroundings;
  size_t cache = size_t{32} << 20;  // bytes of the last-level caches of all the ranks' CPUs together

  // The user's settings (docs/guide/variables.md): A2A_SHM_DIRECT_MIN, A2A_SHM_CMA_MIN, A2A_SHM_STREAM_MIN.
  std::optional<size_t> direct_min, cma_min, stream_min;
  // Whether ranks that share CPUs may move their calling threads to another allowed CPU: A2A_SHM_SPREAD.
  bool spread = false;

  // Describes this machine and this process's environment. Throws Error(invalid_argument) for an invalid variable.
  static Machine here(const Surroundings& surroundings);
};

}  // namespace a2a::shm
