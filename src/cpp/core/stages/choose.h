// Chooses the stages of a collective, by one table. The same on all ranks. Pure functions. Not public.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "a2a/host_facts.h"
#include "a2a/types.h"
#include "core/stages/topology.h"

namespace a2a {

enum class Stages : uint8_t {
  at_once,     // one: each rank exchanges with every other
  host_first,  // the ranks of a host fold, or pass on, what goes between hosts once (host_first.h)
  in_parts,    // every rank carries a part (in_parts.h; Plan::allreduce)
  ring,        // parts go around the hosts (ring.h)
};

const char* to_string(Stages stages);

// Returns the stages of an operation in which rank r has parts[r] bytes: of a reduction that all have for it, otherwise
// that it sends to all.
Stages choose_stages(Op op, std::span<const size_t> parts, const Topology& topology);

// The most bytes of an allreduce in one stage, between hosts.
size_t most_at_once(const Topology& topology);

// Returns the table for a group on several hosts, and for one of `size` ranks on one host, whose transport has that
// limit for an allreduce in one stage.
std::vector<StageChoice> choices_between(const Topology& topology);
std::vector<StageChoice> choices_within(int size, size_t at_once);

}  // namespace a2a
