#include "core/stages/shares.h"

#include <algorithm>

namespace a2a {

std::vector<Piece> shares(const Topology& topology, int host, std::span<const size_t> parts, size_t unit) {
  const auto& carriers = topology.ranks_of(host);
  size_t all = 0;
  for (Rank rank = 0; rank < topology.size(); ++rank) {
    if (topology.host_of(rank) != host) all += parts[static_cast<size_t>(rank)];
  }
  const size_t units = (all + carriers.size() * unit - 1) / (carriers.size() * unit), share = units * unit;
  std::vector<Piece> pieces;
  size_t at = 0;  // in all parts
  for (Rank owner = 0; owner < topology.size(); ++owner) {
    if (topology.host_of(owner) == host) continue;
    const size_t part = parts[static_cast<size_t>(owner)];
    for (size_t offset = 0; offset < part;) {
      const size_t bytes = std::min(part - offset, share - at % share);
      pieces.push_back({owner, carriers[at / share], offset, bytes});
      offset += bytes;
      at += bytes;
    }
  }
  return pieces;
}

}  // namespace a2a
