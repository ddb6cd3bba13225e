// The memory layouts of the tensors of a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "a2a/strides.h"

namespace a2a_py {

// The shape and strides of a tensor, with memory of their own.
class KeptLayout {
 public:
  KeptLayout() = default;
  KeptLayout(int ndim, const int64_t* shape, const int64_t* strides, int64_t elem_bytes, int axis, bool compares)
      : numbers_(shape, shape + ndim), elem_bytes_(static_cast<size_t>(elem_bytes)), axis_(axis), compares_(compares) {
    numbers_.insert(numbers_.end(), strides, strides + ndim);
  }
  a2a::TensorLayout get() const {
    const auto numbers = std::span(numbers_);
    const size_t ndim = numbers_.size() / 2;
    return {numbers.first(ndim), numbers.last(ndim), elem_bytes_, axis_, compares_};
  }

 private:
  std::vector<int64_t> numbers_;
  size_t elem_bytes_ = 1;
  int axis_ = 0;
  bool compares_ = false;
};
using KeptLayouts = std::vector<KeptLayout>;  // of all buffers of one side; empty: all are packed

inline std::vector<a2a::TensorLayout> spans_of(const KeptLayouts& kept) {
  std::vector<a2a::TensorLayout> layouts;
  for (const KeptLayout& layout : kept) layouts.push_back(layout.get());
  return layouts;
}

inline bool are_apart(const KeptLayout& layout) { return a2a::are_apart(layout.get()); }

}  // namespace a2a_py
