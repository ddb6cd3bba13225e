#include "core/send_order.h"

#include <algorithm>
#include <bit>

#include "core/schedule.h"

namespace a2a {

std::vector<Rank> send_order(Rank rank, std::span<const uint64_t> bytes) {
  const int size = static_cast<int>(bytes.size());
  std::vector<Rank> order;
  uint64_t longest = 0;
  for (int step = 1; step < size; ++step) {
    const Rank peer = send_peer(rank, size, step);
    const uint64_t sent = bytes[static_cast<size_t>(peer)];
    if (sent == 0) continue;
    order.push_back(peer);
    longest = std::max(longest, sent);
  }
  const auto by_factors_of_eight = [&](Rank peer) {
    return std::bit_width(longest / bytes[static_cast<size_t>(peer)]) / 3;
  };
  std::ranges::stable_sort(order, {}, by_factors_of_eight);
  return order;
}

}  // namespace a2a
