// An allreduce around a ring of hosts. Pure functions. Not public.
#pragma once

#include <cstddef>
#include <vector>

#include "a2a/plan.h"
#include "core/stages/topology.h"

namespace a2a {

// The most hosts of a ring: an operation has a limited number of stages.
constexpr int kMostHostsOfRing = 100;

// Appends the stages of an allreduce whose input and output are these. The bytes are divided into one part for each
// host. On each host its ranks fold their parts, each a stripe of them. Then part p goes around: it is folded on hosts
// p, p + 1, ..., in this order, which ends on host p - 1; and from there it goes around again. Each host only sends to
// the next one. At last the ranks of each host pass on their stripes. Returns the scratch memory that they need.
size_t append_ring(std::vector<Stage>& stages, Rank rank, const Segment& input, const Segment& output,
                   const Topology& topology, size_t unit);

}  // namespace a2a
