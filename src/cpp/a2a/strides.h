// The memory layout of tensors that are not packed in C order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "a2a/types.h"

namespace a2a {

// The layout of a tensor. The address of its buffer is that of its element (0, 0, ...). A plan sees the elements in C
// order, without gaps: a byte offset of the plan counts bytes in that order.
//
// With an axis other than 0 the plan divides the tensor along it: a row of the plan is one entry of that axis with all
// entries of the others, and the elements of a segment are those of a block, in C order of the block.
struct TensorLayout {
  std::span<const int64_t> shape;    // elements
  std::span<const int64_t> strides;  // bytes from one entry to the next; any values on a send side
  size_t elem_bytes = 1;
  int axis = 0;
  bool compares_blocks = false;  // whether both ends of a segment compare the shapes of their blocks
};

// Whether no two elements share memory, which a receive side requires. It also returns false for some layouts for which
// the answer would take long, with strides that are no multiples of each other.
A2A_API bool are_apart(const TensorLayout& layout);

}  // namespace a2a
