#include <algorithm>

#include "transport/shm/sinks/sinks.h"

namespace a2a::shm::sinks {

bool discard(const Pairs& pairs) {
  Operation& operation = pairs.operation;
  bool moved = operation.own().in_left > 0;
  operation.own().in_left = 0;
  size_t budget = kStepBytes;
  for (const Rank peer : pairs.awaited) {
    const Link link = pairs.with(peer);
    for (auto there = peek(link); !there.empty() && budget > 0; there = peek(link)) {
      const size_t bytes = std::min(budget, there.size());
      consume(link, bytes);
      budget -= bytes;
      moved = true;
    }
  }
  return moved;
}

}  // namespace a2a::shm::sinks
