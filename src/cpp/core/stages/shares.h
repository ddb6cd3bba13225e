// Divides the bytes that a host exchanges with other hosts among its ranks. Not public.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/stages/topology.h"

namespace a2a {

// A piece of the owner's part that passes through a rank of another host, the carrier.
struct Piece {
  Rank owner = 0, carrier = 0;
  size_t offset = 0;  // in the part
  size_t bytes = 0;

  bool operator==(const Piece&) const = default;
};

// parts[r] bytes belong to rank r. Concatenates the parts of all ranks of other hosts, and cuts them into one stretch
// for each rank of this host. All have the same length except the last ones, and all cuts are at multiples of `unit`.
// Returns the pieces in the order of the carriers, and for each carrier in the order of the owners.
std::vector<Piece> shares(const Topology& topology, int host, std::span<const size_t> parts, size_t unit);

}  // namespace a2a
