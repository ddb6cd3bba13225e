// Reductions in terms of vendors' libraries, which fold numbers only.
#pragma once

#include <string>

#include "a2a/types.h"

namespace a2a::device {

// DLPack's codes of the types that the libraries have.
constexpr uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6, kE4m3fn = 10, kE5m2 = 12;

// Returns the operation on the numbers that elements consist of. A bool is 0 or 1: "or" is the maximum, "and" the
// minimum. A complex number is two real ones, which suffices for sums. Returns Fold::none where there is no such
// operation.
inline Fold fold_of_numbers(Fold fold, DType dtype) {
  if (fold == Fold::premul_sum) return dtype.code == kBool ? Fold::none : Fold::sum;
  if (dtype.code == kComplex) return fold == Fold::sum || fold == Fold::avg ? fold : Fold::none;
  if (dtype.code != kBool) return fold;
  if (fold == Fold::sum || fold == Fold::max || fold == Fold::bor) return Fold::max;
  if (fold == Fold::prod || fold == Fold::min || fold == Fold::band) return Fold::min;
  return Fold::none;
}

// Returns the error for a library without such a reduction.
inline Error no_reduction(const std::string& library, Fold fold, DType dtype) {
  return {Code::unsupported, library + " does not reduce " + to_string(dtype) + " with \"" + to_string(fold) +
                                 "\"; reduce it on the host, or as another dtype"};
}

}  // namespace a2a::device
