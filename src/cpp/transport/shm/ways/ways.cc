#include "transport/shm/ways/ways.h"

#include <algorithm>

namespace a2a::shm {

namespace {

std::span<const std::byte> there(const Link& link) {
  switch (link.pair.in) {
    case Pair::In::inlined:
      return inlined::peek(link);
    case Pair::In::streaming:
      return staged::peek(link);
    case Pair::In::pulling:
      return pull::peek(link);
    default:
      return {};
  }
}

}  // namespace

std::span<const std::byte> peek(const Link& link) {
  std::span<const std::byte> next = there(link);
  while (link.pair.again > 0 && !next.empty()) {
    const size_t bytes = std::min(next.size(), link.pair.again);
    link.pair.again -= bytes;
    consume(link, bytes);
    next = there(link);
  }
  return next;
}

void consume(const Link& link, size_t bytes) {
  switch (link.pair.in) {
    case Pair::In::inlined:
      return inlined::consume(link, bytes);
    case Pair::In::streaming:
      return staged::consume(link, bytes);
    default:
      return pull::consume(link, bytes);
  }
}

void take(const Link& link) {
  switch (link.pair.in) {
    case Pair::In::inlined:
      return inlined::take(link);
    case Pair::In::streaming:
      return staged::take(link);
    case Pair::In::pulling:
      return pull::take(link);
    default:
      return;
  }
}

}  // namespace a2a::shm
