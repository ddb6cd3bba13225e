// Which ranks of a group share a host.
#pragma once

#include <vector>

#include "a2a/types.h"

namespace a2a {

// Hosts are numbered in the order of their first ranks.
struct Topology {
  std::vector<int> host;                 // by rank
  std::vector<std::vector<Rank>> ranks;  // by host, in order

  Topology() = default;
  // hosts[r] is any number that rank r shares with the ranks of its host alone.
  explicit Topology(const std::vector<int>& hosts);

  int size() const { return static_cast<int>(host.size()); }
  int hosts() const { return static_cast<int>(ranks.size()); }
  bool has(Rank rank) const { return rank >= 0 && rank < size(); }
  int host_of(Rank rank) const { return host[static_cast<size_t>(rank)]; }
  const std::vector<Rank>& ranks_of(int which) const { return ranks[static_cast<size_t>(which)]; }
  bool share_host(Rank a, Rank b) const { return host_of(a) == host_of(b); }
};

}  // namespace a2a
