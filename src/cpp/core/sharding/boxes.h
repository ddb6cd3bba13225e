// Arithmetic of boxes. Pure functions. Not public.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "a2a/sharding.h"

namespace a2a::sharding {

// Throws Error(invalid_argument).
[[noreturn]] void refuse(const std::string& text);

Box whole(std::span<const int64_t> shape);
bool is_empty(const Box& box);
// The entries that both have. All have as many dimensions.
bool meet(const Box& a, const Box& b);
Box common(const Box& a, const Box& b);
bool contains(const Box& outer, const Box& inner);
// The box in entries of the other one, which contains it.
Box within(const Box& box, const Box& outer);
// Returns disjoint boxes with the entries of `box` that `hole` does not have.
std::vector<Box> without(const Box& box, const Box& hole);

// Where a box is cut: along one dimension, the outermost one that has entries enough for `parts` parts.
class Cutter {
 public:
  Cutter(const Box& box, size_t parts, size_t elem_bytes);
  // Returns the entry before which the first `elems` elements end, about: no piece becomes very small.
  int64_t entry(uint64_t elems) const;
  // Returns the part between two entries.
  Box part(int64_t from, int64_t to) const;
  int64_t entries() const { return entries_; }

 private:
  const Box& box_;
  size_t dim_ = 0;
  int64_t entries_ = 1;   // along the dimension
  uint64_t elems_ = 1;    // of each
  int64_t together_ = 1;  // entries that stay together
};

}  // namespace a2a::sharding
