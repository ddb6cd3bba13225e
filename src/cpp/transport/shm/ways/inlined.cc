#include "runtime/faultpoint.h"
#include "transport/shm/ways/ways.h"

namespace a2a::shm::inlined {

void offer(const Link& link) {
  gather(link.pair.source, const_cast<std::byte*>(inline_payload(link.own_line())), link.pair.mine.sent);
}

void begin(const Link& link) {
  if (link.pair.in_left > link.other.block.inline_bytes()) link.nonsense("kind");
  begin(link, {inline_payload(link.their_line()), link.pair.in_left});
}

void begin(const Source& from, std::span<const std::byte> bytes) {
  from.pair.here = bytes;
  from.pair.in = Pair::In::inlined;
}

void take(const Source& from) {
  Pair& p = from.pair;
  const size_t bytes = p.here.size();
  scatter(p.target, p.here.data(), bytes, from.transfer.stores);
  faultpoint("copy");
  inlined::consume(from, bytes);
}

std::span<const std::byte> peek(const Source& from) { return from.pair.here; }

void consume(const Source& from, size_t bytes) {
  Pair& p = from.pair;
  p.here = p.here.subspan(bytes);
  p.in_left -= bytes;
  if (p.here.empty()) p.in = p.in_left == 0 ? Pair::In::arrived : Pair::In::asking;
}

}  // namespace a2a::shm::inlined
