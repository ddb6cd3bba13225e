#include <algorithm>

#include "transport/shm/sinks/sinks.h"

namespace a2a::shm::sinks {
namespace {

// Adds at most `most` bytes of the next row, which is one that this rank has sent itself. Returns how many.
size_t add_own(Operation& operation, size_t most) {
  alignas(64) std::byte packed[kPacked];
  Cursor source = operation.own().source;
  const bool gaps = source.has_gaps();
  const size_t bytes = std::min(most, gaps ? kPacked : source.contiguous());
  const std::byte* const data = gaps ? packed : source.data();
  if (gaps) gather(source, packed, bytes);
  operation.summing->add(data, bytes);
  operation.own().source.advance(bytes);
  operation.own().in_left -= bytes;
  return bytes;
}

// The same for a row of a peer. Returns 0 if nothing of it has come.
size_t add_from(const Link& link, size_t most, size_t elem_bytes) {
  const std::span<const std::byte> there = peek(link);
  if (there.empty()) return 0;
  if (there.size() < elem_bytes) link.nonsense("run");  // no element is cut
  const size_t bytes = std::min(most, there.size()) / elem_bytes * elem_bytes;
  link.operation.summing->add(there.data(), bytes);
  consume(link, bytes);
  return bytes;
}

}  // namespace

bool sum(const Pairs& pairs) {
  Operation& operation = pairs.operation;
  const size_t elem_bytes = operation.batch.signature.dtype.bytes();
  bool moved = false;
  for (size_t budget = kStepBytes; budget > 0; moved = true) {
    const Rank from = operation.summing->next();
    if (from == Summing::kNobody) return moved;
    const size_t most = std::min(operation.summing->left(), budget);
    const size_t bytes =
        from == operation.rank ? add_own(operation, most) : add_from(pairs.with(from), most, elem_bytes);
    if (bytes == 0) return moved;
    budget -= bytes;
  }
  return moved;
}

}  // namespace a2a::shm::sinks
