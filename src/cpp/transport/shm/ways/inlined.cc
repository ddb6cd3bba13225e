#include "runtime/faultpoint.h"
#include "transport/shm/ways/ways.h"

namespace a2a::shm::inlined {

void offer(const Link& link) {
  gather(link.pair.source, const_cast<std::byte*>(inline_payload(link.own_line())), link.pair.mine.sent);
}

void begin(const Link& link) {
  if (link.pair.in_left > link.other.block.inline_bytes()) link.nonsense("kind");
  link.pair.in = Pair::In::inlined;
}

void take(const Link& link) {
  Pair& p = link.pair;
  scatter(p.target, inline_payload(link.their_line()), p.in_left);
  faultpoint("copy");
  p.in_left = 0;
  p.in = Pair::In::arrived;
}

std::span<const std::byte> peek(const Link& link) {
  const Pair& p = link.pair;
  return {inline_payload(link.their_line()) + (p.theirs.sent - p.in_left), p.in_left};
}

void consume(const Link& link, size_t bytes) {
  Pair& p = link.pair;
  p.in_left -= bytes;
  if (p.in_left == 0) p.in = Pair::In::arrived;
}

}  // namespace a2a::shm::inlined
