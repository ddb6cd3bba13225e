#include "runtime/faultpoint.h"
#include "transport/shm/ways/ways.h"

namespace a2a::shm::inlined {

void offer(const Link& link) {
  gather(link.pair.source, const_cast<std::byte*>(inline_payload(link.own_line())), link.pair.mine.sent);
}

void take(const Link& link) {
  Pair& p = link.pair;
  if (p.in_left > link.other.block.inline_bytes()) link.nonsense("kind");
  scatter(p.target, inline_payload(link.their_line()), p.in_left);
  faultpoint("copy");
  p.in_left = 0;
  p.in = Pair::In::arrived;
}

}  // namespace a2a::shm::inlined
