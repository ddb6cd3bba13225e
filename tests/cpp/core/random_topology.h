#pragma once

#include <utility>
#include <vector>

#include "check.h"
#include "core/stages/topology.h"

namespace a2a::check_plans {

inline size_t at(Rank rank) { return static_cast<size_t>(rank); }

// Up to `most` ranks on two hosts or more, in any order.
inline Topology random_topology(check::Random& random, int most = 9) {
  const int size = random.in(2, most), hosts = random.in(2, size);
  std::vector<int> names(at(size));
  for (int rank = 0; rank < size; ++rank) names[at(rank)] = rank < hosts ? rank : random.in(0, hosts - 1);
  for (int rank = size - 1; rank > 0; --rank) std::swap(names[at(rank)], names[at(random.in(0, rank))]);
  return Topology(names);
}

}  // namespace a2a::check_plans
