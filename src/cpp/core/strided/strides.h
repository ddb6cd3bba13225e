// A block of memory with gaps, whose bytes are numbered in C order, without the gaps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "a2a/strides.h"

namespace a2a {

// The dimensions and strides of a block. Dimensions of one entry are left out, and dimensions without a gap between
// them are merged. The innermost dimensions without gaps are a piece.
class Strides {
 public:
  static constexpr int kMostDims = 8;

  struct Dim {
    size_t count = 1;
    ptrdiff_t stride = 0;  // bytes of memory from one entry to the next
    size_t bytes = 0;      // of one entry, without gaps

    bool operator==(const Dim&) const = default;
  };

  // The strides of `count` entries of layout.axis, or of the whole tensor. Throws Error(invalid_argument) for a tensor
  // of more than kMostDims dimensions that remain. Requires that no dimension is 0.
  explicit Strides(const TensorLayout& layout);
  Strides(const TensorLayout& layout, size_t count);
  // Makes strides of dimensions, outermost first, that another process has sent. Nothing if they are invalid.
  static std::optional<Strides> of(size_t piece, std::span<const Dim> dims);

  bool operator==(const Strides&) const = default;

  int dims() const { return dims_; }
  const Dim& dim(int i) const { return dim_[i]; }  // outermost first
  size_t piece() const { return piece_; }
  size_t bytes() const { return dims_ == 0 ? piece_ : dim_[0].count * dim_[0].bytes; }  // of the block
  bool contiguous() const { return dims_ == 0; }

  // offset() returns the distance of byte `at` of the block from its first element; together() returns how many bytes
  // follow from there without a gap.
  ptrdiff_t offset(size_t at) const {
    ptrdiff_t offset = 0;
    for (int i = 0; i < dims_; ++i) {
      offset += static_cast<ptrdiff_t>(at / dim_[i].bytes) * dim_[i].stride;
      at %= dim_[i].bytes;
    }
    return offset + static_cast<ptrdiff_t>(at);
  }
  size_t together(size_t at) const { return dims_ == 0 ? SIZE_MAX : piece_ - at % piece_; }

  // The begin and the end of its memory, relative to its first element.
  ptrdiff_t begin() const { return begin_; }
  ptrdiff_t end() const { return end_; }

 private:
  explicit Strides(size_t piece) : piece_(piece) {}
  void append(size_t count, ptrdiff_t stride);

  int dims_ = 0;
  size_t piece_ = 1;
  ptrdiff_t begin_ = 0, end_ = 0;
  Dim dim_[kMostDims];
};

// Copy the bytes from `at` on of the block that begins at `block` to packed memory, and back.
void gather(const std::byte* block, const Strides& strides, size_t at, size_t bytes, std::byte* to);
void scatter(std::byte* block, const Strides& strides, size_t at, size_t bytes, const std::byte* from);

}  // namespace a2a
