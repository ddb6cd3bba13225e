// The receiving side of a weighted sum: takes the peers' rows in the order in which they are summed.
#include <algorithm>

#include "transport/shm/exchange.h"

namespace a2a::shm {

bool Exchange::sum(Membership& m) {
  bool moved = open_all(m);
  moved |= disagreements_.empty() ? sum_pieces(m) : drop_pieces(m);
  std::erase_if(awaited_, [this](Rank peer) { return pair(peer).in == Pair::In::arrived; });
  return moved;
}

// Sums rows while the rank whose row is next has sent it. The bytes of the other ranks stay where they are.
bool Exchange::sum_pieces(Membership& m) {
  Summing& summing = *operation_.summing;
  Pair& own = operation_.own();
  const size_t elem_bytes = operation_.batch.signature.dtype.bytes();
  const CopyingGuard guard(m);
  throw_if_pulled_from_aborted(m);
  bool moved = false;
  for (size_t budget = kCopyStep;;) {
    const Rank from = summing.next();
    if (from == Summing::kNobody || budget == 0) return moved;
    const size_t wanted = std::min(summing.left(), budget);
    const auto add = [&](std::span<const std::byte> piece) {
      if (piece.size() < elem_bytes) Link(m, operation_, from).nonsense("run");  // no element is cut
      const size_t bytes = std::min(wanted, piece.size()) / elem_bytes * elem_bytes;
      summing.add(piece.data(), bytes);
      budget -= bytes;
      moved = true;
      return bytes;
    };
    if (from == operation_.rank) {
      alignas(64) std::byte packed[kPacked];
      Cursor source = own.source;
      size_t bytes = std::min(wanted, source.has_gaps() ? kPacked : source.contiguous());
      const std::byte* const data = source.has_gaps() ? packed : source.data();
      if (source.has_gaps()) gather(source, packed, bytes);
      bytes = add({data, bytes});
      own.source.advance(bytes);
      own.in_left -= bytes;
      continue;
    }
    const Link link(m, operation_, from);
    std::span<const std::byte> there = peek(link);
    // Skips bytes that come again through chunks: they were summed before.
    while (!there.empty() && link.pair.theirs.sent - link.pair.in_left < link.pair.summed) {
      const size_t again = link.pair.summed - (link.pair.theirs.sent - link.pair.in_left);
      consume(link, std::min(there.size(), again));
      there = peek(link);
    }
    if (there.empty()) return moved;
    const size_t bytes = add(there);
    link.pair.summed += bytes;
    consume(link, bytes);
  }
}

// Drops the rows after a disagreement: there is no sum, but peers that agree with this rank wait until it takes their
// rows.
bool Exchange::drop_pieces(Membership& m) {
  const CopyingGuard guard(m);
  throw_if_pulled_from_aborted(m);
  bool moved = operation_.own().in_left > 0;
  operation_.own().in_left = 0;
  size_t budget = kCopyStep;
  for (const Rank peer : awaited_) {
    const Link link(m, operation_, peer);
    for (auto there = peek(link); !there.empty() && budget > 0; there = peek(link)) {
      const size_t bytes = std::min(budget, there.size());
      consume(link, bytes);
      budget -= bytes;
      moved = true;
    }
  }
  return moved;
}

}  // namespace a2a::shm
