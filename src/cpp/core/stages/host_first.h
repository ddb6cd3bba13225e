// Stages for hosts with several ranks: bytes that concern a whole host go between hosts once. Pure functions. Not
// public.
//
// A fold begins on each host: its ranks fold their parts into one, and only that goes to other hosts. Bytes that all
// ranks get come to each host once, in pieces, and its ranks pass the pieces on.
//
// All ranks have to go on to the next stage, or none. So all facts that they compare contain all arguments
// (Plan::agreement), and every pair compares them, even if it exchanges no bytes.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "a2a/plan.h"
#include "core/stages/topology.h"

namespace a2a {

// The stage of one rank, and every rank's part: of a fold the bytes that each rank has for it, otherwise the bytes that
// it sends to all.
struct PartsOfStage {
  const Stage& stage;
  Rank rank = 0;
  std::vector<size_t> bytes;  // by rank
  int without = -1;           // a host that gets nothing from others
};

// Requires at most one segment for each peer.
PartsOfStage parts_of(const Stage& stage, Rank rank, const Topology& topology);

// Returns the parts of a fold in one stage: host by host.
std::vector<FoldPart> parts_by_host(const Stage& stage, const Topology& topology);

// Appends two stages that do what a fold in one stage does. Here: each rank folds the parts that this host's ranks have
// for itself, and its share of those for ranks of other hosts. Between hosts: the shares go to those ranks. The first
// bytes of the pieces are at multiples of `unit` bytes. The stages use scratch memory from byte `scratch` on; returns
// its end.
size_t append_host_first(std::vector<Stage>& stages, const PartsOfStage& parts, const Topology& topology, size_t unit,
                         size_t scratch = 0);

// Appends two stages that do what a stage does in which each rank's part goes to all. Between hosts, where `first`
// says whether the ranks of a host compare their arguments meanwhile: the parts go to their carriers on each host, by
// shares. Then on each host: each rank passes on its own part and its share.
void append_host_last(std::vector<Stage>& stages, const PartsOfStage& parts, const Topology& topology, Reach first);

}  // namespace a2a
