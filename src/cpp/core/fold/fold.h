// The arithmetic of reductions: folds the elements of several ranks into one, in rank order. Pure functions, no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "a2a/types.h"

namespace a2a {

// Folds the elements x0, x1, x2, ... of the ranks 0, 1, 2, ...: ((x0 op x1) op x2) op ...
//
// float16, bfloat16, float8 and complex32 are folded in float32 and rounded once, at the end. Integers wrap. avg is the
// sum divided by the number of ranks. Of bools sum, max and bor mean "or", prod, min and band mean "and", bxor
// "unequal". min and max give NaN where any x is one.
struct FoldKernels;

class Folder {
 public:
  // Throws Error(invalid_argument) if this operation has no meaning for this dtype: bit operations on anything but
  // integers and bools, avg of integers and bools, min and max of complex numbers, dtypes that are no numbers.
  Folder(Fold fold, DType dtype);

  // Folds parts[0], parts[1], ... of `elems` elements each. `out` may be one of them.
  void fold(std::span<const std::byte* const> parts, size_t elems, std::byte* out) const;

  // The same in steps, for parts that arrive one after the other. An accumulator has acc_bytes() for each element.
  size_t acc_bytes() const;
  void start(const std::byte* part, size_t elems, std::byte* acc) const;  // acc = part
  void add(const std::byte* part, size_t elems, std::byte* acc) const;    // acc = acc op part
  void merge(const std::byte* more, size_t elems, std::byte* acc) const;  // acc = acc op more, an accumulator
  void finish(const std::byte* acc, size_t elems, int ranks, std::byte* out) const;
  // Of a sum: whether parts may be multiplied by a weight first, in the type of the accumulator. Complex numbers may
  // not.
  bool scales() const;
  void start(const std::byte* part, size_t elems, float weight, std::byte* acc) const;  // acc = weight * part
  void add(const std::byte* part, size_t elems, float weight, std::byte* acc) const;    // acc = acc + weight * part

 private:
  const FoldKernels* kernels_;
  size_t elem_bytes_;
};

}  // namespace a2a
