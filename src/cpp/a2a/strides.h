// Where the elements of a tensor lie that are not packed in C order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "a2a/types.h"

namespace a2a {

// A tensor in memory whose address is that of its element (0, 0, ...). A plan sees its elements in C order, without
// gaps: what it calls a byte of the buffer is a byte of that order.
//
// With an axis other than 0 the plan divides the tensor along it: a row of the plan is one entry of that axis with all
// entries of the others, and the elements of a segment are those of a block, in C order of the block.
struct TensorLayout {
  std::span<const int64_t> shape;    // elements
  std::span<const int64_t> strides;  // bytes from one entry to the next; any on what is sent
  size_t elem_bytes = 1;
  int axis = 0;
  bool compares_blocks = false;  // whether both ends of a segment have to see a block of the same shape
};

// Whether no two elements share memory, as those that are received must not. False also for some layouts of which it
// would take long to find out, with strides that are no multiples of each other.
A2A_API bool are_apart(const TensorLayout& layout);

}  // namespace a2a
