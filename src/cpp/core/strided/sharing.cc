#include "core/strided/sharing.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace a2a {
namespace {

// The most pieces of a block that are compared one by one.
constexpr size_t kMostPieces = size_t{1} << 20;

size_t piece_of(const Stretch& block) {
  return block.strides == nullptr ? static_cast<size_t>(block.end - block.begin) : block.strides->piece();
}

const std::byte* first_of(const Stretch& block) {
  return block.strides == nullptr ? block.begin : block.begin - block.strides->begin();
}

// The greatest number that divides all strides; 0 where there are none.
size_t common_stride(const Stretch& block) {
  size_t common = 0;
  for (int i = 0; block.strides != nullptr && i < block.strides->dims(); ++i) {
    const ptrdiff_t stride = block.strides->dim(i).stride;
    common = std::gcd(common, static_cast<size_t>(stride < 0 ? -stride : stride));
  }
  return common;
}

// Whether the pieces of both lie at other distances from multiples of a number that divides all strides.
bool interleave(const Stretch& a, const Stretch& b) {
  const auto period = static_cast<ptrdiff_t>(std::gcd(common_stride(a), common_stride(b)));
  if (period == 0) return false;
  const ptrdiff_t apart = ((first_of(b) - first_of(a)) % period + period) % period;
  return static_cast<ptrdiff_t>(piece_of(a)) <= apart && apart + static_cast<ptrdiff_t>(piece_of(b)) <= period;
}

// The pieces of a block, in the order of their addresses.
std::vector<const std::byte*> pieces_of(const Stretch& block) {
  if (block.strides == nullptr) return {block.begin};
  std::vector<const std::byte*> pieces;
  for (size_t at = 0; at < block.strides->bytes(); at += block.strides->piece()) {
    pieces.push_back(first_of(block) + block.strides->offset(at));
  }
  if (!std::ranges::is_sorted(pieces)) std::ranges::sort(pieces);
  return pieces;
}

}  // namespace

bool share_memory(const Stretch& a, const Stretch& b) {
  if (a.end <= b.begin || b.end <= a.begin) return false;
  if (a.strides == nullptr && b.strides == nullptr) return true;
  if (interleave(a, b)) return false;
  for (const Stretch* block : {&a, &b}) {
    if (block->strides != nullptr && block->strides->bytes() / block->strides->piece() > kMostPieces) return true;
  }
  const auto mine = pieces_of(a), theirs = pieces_of(b);
  const size_t my_bytes = piece_of(a), their_bytes = piece_of(b);
  for (size_t i = 0, k = 0; i < mine.size() && k < theirs.size();) {
    if (mine[i] + my_bytes <= theirs[k]) {
      ++i;
    } else if (theirs[k] + their_bytes <= mine[i]) {
      ++k;
    } else {
      return true;
    }
  }
  return false;
}

}  // namespace a2a
