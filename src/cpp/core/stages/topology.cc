#include "core/stages/topology.h"

#include <map>

namespace a2a {

Topology::Topology(const std::vector<int>& hosts) {
  std::map<int, int> numbers;
  for (const int name : hosts) {
    const auto [found, is_new] = numbers.emplace(name, static_cast<int>(numbers.size()));
    if (is_new) ranks.emplace_back();
    ranks[static_cast<size_t>(found->second)].push_back(static_cast<Rank>(host.size()));
    host.push_back(found->second);
  }
}

}  // namespace a2a
