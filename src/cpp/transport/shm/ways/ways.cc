#include "transport/shm/ways/ways.h"

namespace a2a::shm {

std::span<const std::byte> peek(const Link& link) {
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

}  // namespace a2a::shm
