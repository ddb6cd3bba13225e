// Arranges a plan in stages for a group with ranks on several hosts. Pure functions. Not public.
#pragma once

#include <optional>

#include "a2a/communicator.h"
#include "a2a/plan.h"
#include "core/stages/topology.h"

namespace a2a {

// Returns the stages in which that call should run the plan; nullopt: as it is. The same on all ranks.
std::optional<Plan> arrange(const Plan& plan, const Call& call, const Topology& topology);

}  // namespace a2a
