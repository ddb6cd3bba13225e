// Stages of rooted operations between three hosts or more: every rank carries a part of the bytes, so that the link of
// the root's host carries them once rather than once for each other host. Pure functions. Not public.
#pragma once

#include <cstddef>
#include <vector>

#include "a2a/plan.h"
#include "core/stages/topology.h"

namespace a2a {

// Appends the stages of a broadcast. The root sends a part to each rank of the other hosts; these bring the parts to
// all other hosts; then the ranks of each host pass on what they have.
void append_broadcast_in_parts(std::vector<Stage>& stages, const Plan& plan, const Topology& topology);

// Appends the stages of a reduce: a reduce_scatter, host by host, and then each rank sends the root its part. Returns
// the scratch memory that they need.
size_t append_reduce_in_parts(std::vector<Stage>& stages, const Plan& plan, const Topology& topology, size_t unit);

}  // namespace a2a
