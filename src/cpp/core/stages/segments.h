// Helpers for stages whose peers have one segment each. Not public.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "a2a/plan.h"

namespace a2a::stages {

constexpr size_t kLine = 64;  // of a cache: pieces begin at its multiples, as far as elements allow

// Returns the unit of pieces of elements that have so many bytes.
constexpr size_t unit_of(size_t elem_bytes) {
  const size_t elem = elem_bytes > 0 ? elem_bytes : 1;
  return (kLine + elem - 1) / elem * elem;
}

// Returns the segment with that peer, or an empty one. Requires that they are sorted by peer.
inline Segment with(std::span<const Segment> segments, Rank peer) {
  const auto found = std::ranges::lower_bound(segments, peer, {}, &Segment::peer);
  return found != segments.end() && found->peer == peer ? *found : Segment{peer};
}

// Returns a part of the segment.
inline Segment part(Segment whole, size_t offset, size_t bytes) {
  whole.offset += offset;
  whole.bytes = bytes;
  return whole;
}

inline Segment in(Space space, Segment segment) {
  segment.space = space;
  return segment;
}

// Appends the segment, unless it is empty, as one of that peer.
inline void append(std::vector<Segment>& to, Rank peer, Segment segment) {
  segment.peer = peer;
  if (segment.bytes > 0) to.push_back(segment);
}

inline void sort_by_peer(Stage& stage) {
  std::ranges::stable_sort(stage.sends, {}, &Segment::peer);
  std::ranges::stable_sort(stage.recvs, {}, &Segment::peer);
}

// Where the i-th of `count` equal pieces of `bytes` bytes begins; the end of the last one for i = count.
constexpr size_t begin_of(size_t i, size_t count, size_t bytes, size_t unit) {
  const size_t piece = (bytes + count * unit - 1) / (count * unit) * unit;
  return std::min(bytes, i * piece);
}

}  // namespace a2a::stages
