// The receiving side of a reduction: folds the peers' bytes, piece by piece, in rank order.
#include <algorithm>

#include "transport/shm/exchange.h"

namespace a2a::shm {

// Folds a piece only when all ranks have sent it, so that each piece is read once and written once.
bool Exchange::fold(Membership& m) {
  bool moved = open_all(m);
  const auto waits = [this](Rank peer) {
    return pair(peer).in == Pair::In::awaited || pair(peer).in == Pair::In::asking;
  };
  if (!std::ranges::any_of(awaited_, waits)) moved |= fold_pieces(m);
  std::erase_if(awaited_, [this](Rank peer) { return pair(peer).in == Pair::In::arrived; });
  return moved;
}

bool Exchange::fold_pieces(Membership& m) {
  // Bytes that were pulled need the guard. Staged bytes stay valid if their sender gives up.
  const CopyingGuard guard(m);
  throw_if_pulled_from_aborted(m);
  bool moved = false;
  for (size_t budget = kCopyStep; budget > 0;) {
    const size_t bytes = std::min(budget, next_piece(m));
    if (bytes == 0) break;
    Pair& own = operation_.own();
    if (disagreements_.empty()) fold_piece(bytes);
    own.source.advance(bytes);
    own.target.advance(bytes);
    own.in_left -= bytes;
    for (const Rank peer : awaited_) consume(Link(m, operation_, peer), bytes);
    budget -= bytes;
    moved = true;
  }
  return moved;
}

// Folds a piece of `bytes` bytes from parts_. This rank's own part and the output may have gaps.
void Exchange::fold_piece(size_t bytes) {
  const size_t elems = bytes / operation_.batch.signature.dtype.bytes();
  Cursor source = operation_.own().source, target = operation_.own().target;
  alignas(64) std::byte packed[kPacked], folded[kPacked];
  if (source.has_gaps()) {
    parts_[static_cast<size_t>(operation_.rank)] = packed;
    gather(source, packed, bytes);
  }
  std::byte* const output = target.has_gaps() ? folded : target.data();
  operation_.folder->fold(parts_, elems, output);
  if (target.has_gaps()) scatter(target, folded, bytes);
}

// Returns how many bytes have come from every rank, and stores their addresses in parts_, by rank.
size_t Exchange::next_piece(Membership& m) {
  Pair& own = operation_.own();
  if (own.in_left == 0) return 0;
  const size_t elem_bytes = operation_.batch.signature.dtype.bytes();
  size_t bytes = std::min({own.in_left, own.source.left_of_run(), own.target.left_of_run()});
  if (own.source.has_gaps() || own.target.has_gaps()) bytes = std::min(bytes, kPacked);
  parts_.assign(operation_.pairs.size(), nullptr);
  parts_[static_cast<size_t>(operation_.rank)] = own.source.data();
  for (const Rank peer : awaited_) {
    const Link link(m, operation_, peer);
    std::span<const std::byte> there = peek(link);
    // Skips bytes that come again through chunks: they were folded before.
    while (!there.empty() && link.pair.in_left > own.in_left) {
      consume(link, std::min(there.size(), link.pair.in_left - own.in_left));
      there = peek(link);
    }
    if (there.empty()) return 0;
    if (there.size() < elem_bytes) link.nonsense("run");  // no element is cut
    parts_[static_cast<size_t>(peer)] = there.data();
    bytes = std::min(bytes, there.size());
  }
  return bytes - bytes % elem_bytes;
}

}  // namespace a2a::shm
