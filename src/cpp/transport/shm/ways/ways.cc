#include "transport/shm/ways/ways.h"

#include <algorithm>

namespace a2a::shm {

namespace {

std::span<const std::byte> there(const Source& from) {
  switch (from.pair.in) {
    case Pair::In::inlined:
      return inlined::peek(from);
    case Pair::In::streaming:
      return staged::peek(from);
    case Pair::In::pulling:
      return pull::peek(from);
    default:
      return {};
  }
}

}  // namespace

std::span<const std::byte> peek(const Source& from) {
  std::span<const std::byte> next = there(from);
  while (from.pair.again > 0 && !next.empty()) {
    const size_t bytes = std::min(next.size(), from.pair.again);
    from.pair.again -= bytes;
    consume(from, bytes);
    next = there(from);
  }
  return next;
}

void consume(const Source& from, size_t bytes) {
  switch (from.pair.in) {
    case Pair::In::inlined:
      return inlined::consume(from, bytes);
    case Pair::In::streaming:
      return staged::consume(from, bytes);
    default:
      return pull::consume(from, bytes);
  }
}

void take(const Source& from) {
  switch (from.pair.in) {
    case Pair::In::inlined:
      return inlined::take(from);
    case Pair::In::streaming:
      return staged::take(from);
    case Pair::In::pulling:
      return pull::take(from);
    default:
      return;
  }
}

}  // namespace a2a::shm
