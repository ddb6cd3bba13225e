#include <algorithm>

#include "transport/shm/sinks/sinks.h"

namespace a2a::shm::sinks {
namespace {

// Returns how many bytes have come from every rank, and stores the addresses of the peers' bytes in parts.
size_t next_piece(const Pairs& pairs) {
  Reduction& reduction = pairs.operation.reduction;
  const Pair& own = pairs.operation.own();
  const size_t elem_bytes = pairs.operation.batch.signature.dtype.bytes();
  if (reduction.left == 0 && !reduction.next(pairs.operation.rank)) return 0;
  bool gaps = reduction.output.has_gaps();
  size_t bytes = std::min(reduction.left, reduction.output.left_of_run());
  reduction.parts.assign(reduction.ranks.size(), nullptr);
  for (size_t i = 0; i < reduction.ranks.size(); ++i) {
    if (reduction.ranks[i] == pairs.operation.rank) {
      bytes = std::min(bytes, own.source.left_of_run());
      gaps |= own.source.has_gaps();
      continue;
    }
    const Link link = pairs.with(reduction.ranks[i]);
    const std::span<const std::byte> there = peek(link);
    if (there.empty()) return 0;
    if (there.size() < elem_bytes) link.nonsense("run");  // no element is cut
    reduction.parts[i] = there.data();
    bytes = std::min(bytes, there.size());
  }
  if (gaps) bytes = std::min(bytes, kPacked);
  return bytes - bytes % elem_bytes;
}

// Folds `bytes` bytes of each part. This rank's own part and the output may have gaps.
void fold_piece(Operation& operation, size_t bytes) {
  Reduction& reduction = operation.reduction;
  const size_t elems = bytes / operation.batch.signature.dtype.bytes();
  Cursor source = operation.own().source, output = reduction.output;
  alignas(64) std::byte packed[kPacked], folded[kPacked];
  if (reduction.own) {
    const bool gaps = source.has_gaps();
    reduction.parts[*reduction.own] = gaps ? packed : source.data();
    if (gaps) gather(source, packed, bytes);
  }
  if (!output.has_gaps()) return reduction.folder->fold(reduction.parts, elems, output.data());
  reduction.folder->fold(reduction.parts, elems, folded);
  scatter(output, folded, bytes);
}

}  // namespace

bool fold(const Pairs& pairs) {
  Operation& operation = pairs.operation;
  Reduction& reduction = operation.reduction;
  Pair& own = operation.own();
  bool moved = false;
  for (size_t budget = kStepBytes; budget > 0;) {
    const size_t bytes = std::min(budget, next_piece(pairs));
    if (bytes == 0) break;
    fold_piece(operation, bytes);
    reduction.output.advance(bytes);
    reduction.left -= bytes;
    if (reduction.own) {
      own.source.advance(bytes);
      own.in_left -= bytes;
    }
    for (const Rank peer : reduction.ranks) {
      if (peer != operation.rank) consume(pairs.with(peer), bytes);
    }
    budget -= bytes;
    moved = true;
  }
  return moved;
}

}  // namespace a2a::shm::sinks
