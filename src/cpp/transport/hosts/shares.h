// How the ranks of a host divide among themselves what all of them exchange with other hosts.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "transport/hosts/places.h"

namespace a2a::hosts {

// Bytes of the owner's part that pass through a rank of another host, the carrier.
struct Piece {
  Rank owner = 0, carrier = 0;
  size_t offset = 0;  // in the part
  size_t bytes = 0;

  bool operator==(const Piece&) const = default;
};

// parts[r] bytes belong to rank r. The parts of all ranks that do not live on this host, one after the other, are cut
// in one run for each of its ranks, of the same length but for the last ones; all cuts are at multiples of `unit`. In
// the order of the carriers, and for each of them in that of the owners.
std::vector<Piece> shares(const Places& places, int host, std::span<const size_t> parts, size_t unit);

}  // namespace a2a::hosts
