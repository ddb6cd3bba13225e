// a2a/simulator.h with the types that Cython can pass.
#pragma once

#include <cstddef>
#include <cstdint>

#include "a2a/simulator.h"

namespace a2a_py {

inline a2a::simulator::Outcome simulate(const a2a::simulator::Cluster& cluster, int schedule, const uint64_t* bytes,
                                        size_t count, size_t kept) {
  return a2a::simulator::simulate(cluster, static_cast<a2a::simulator::Schedule>(schedule), {bytes, count}, kept);
}

}  // namespace a2a_py
