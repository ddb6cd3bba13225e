// What becomes of the bytes that have come. Each sink takes them from the sources of the pairs (ways.h) as far as they
// have come, at most a step of kStepBytes bytes. Returns whether anything moved.
#pragma once

#include <span>

#include "transport/shm/ways/ways.h"

namespace a2a::shm::sinks {

// For a fold or sum, memory with gaps is packed in blocks of so many bytes.
inline constexpr size_t kPacked = size_t{8} << 10;

// The pairs from which an operation still expects bytes. Their lines are open, unless they are Pair::In::awaited.
struct Pairs {
  Membership& m;
  Operation& operation;
  std::span<const Rank> awaited;

  Link with(Rank peer) const { return {m, operation, peer}; }
};

// Writes the bytes of one pair, or of a message, to its receives.
bool copy(const Source& from);
// Copies a part of what this rank sends to itself, or all of it if it stays in place.
void copy_own(Operation& operation);
// Folds pieces in the order of Operation::Reduction::ranks into the one output. A piece is folded when all these ranks
// have sent it, so that it is read once and written once.
bool fold(const Pairs& pairs);
// Sums rows in the order of their terms while the rank whose row is next has sent it. The bytes of the other ranks stay
// where they are.
bool sum(const Pairs& pairs);
// Takes the bytes of a fold or sum, and uses them for nothing: after a disagreement there is no result, but peers that
// agree with this rank wait until their bytes are taken.
bool discard(const Pairs& pairs);

}  // namespace a2a::shm::sinks
