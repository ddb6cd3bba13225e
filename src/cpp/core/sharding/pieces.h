// Who sends what to whom. Pure functions. Not public.
#pragma once

#include <span>
#include <vector>

#include "core/sharding/parts.h"
#include "core/stages/topology.h"

namespace a2a::sharding {

// A box that comes to a rank: from one rank, or from several, whose terms it folds. That rank then passes it on.
struct Piece {
  Box box;
  std::span<const Rank> from;
  Rank to = 0;
  std::vector<Rank> then;
};

// What all ranks know of a tensor.
struct Distribution {
  std::span<const Parts::Group> wanted;
  const Topology& topology;
  size_t elem_bytes = 1;
  bool folds = false;
  bool passes_on = true;  // whether ranks that want the same box may pass pieces on
  size_t turn = 0;        // the tensor's number: which of the ranks that have the same begins
};

// Returns the pieces of a cell, in the same order on all ranks; of those that do not concern `rank`, some are left out.
// The ranks of `from` lie in the cell.
//
// A rank copies what it has. Where several ranks of a host want the same box, and no rank of that host has it, each of
// them gets a piece and passes that on. Partial sums are divided among all ranks that want the same box. Then the
// copies of the cell divide what they send: those of a host what its ranks want, and all of them what other hosts want.
std::vector<Piece> pieces_of(const Parts::Cell& cell, const Distribution& distribution, Rank rank);

}  // namespace a2a::sharding
