// A weighted sum of rows that arrive one after the other: the tokens that combine() returns.
#pragma once

#include <cstddef>
#include <vector>

#include "core/fold/fold.h"
#include "core/fold/weighted_sum.h"

namespace a2a {

// Output row i is weights[i][0] * (its first row) + weights[i][1] * (its second row) + ... + the biases, from left to
// right, in the accumulator type of Folder for that dtype, rounded once. A row without terms is the biases, or 0.
class Summing {
 public:
  static constexpr Rank kNobody = -1;

  // Throws Error(invalid_argument) for dtypes that are no real floating-point numbers.
  Summing(const WeightedSum& sum, DType dtype);

  // Returns the rank from which the next bytes have to come; kNobody: all rows are summed.
  Rank next();
  // Returns how many bytes are left of the row that comes next.
  size_t left() const { return sum_.row_bytes - offset_; }
  // Adds `bytes` bytes of that row. Requires whole elements.
  void add(const std::byte* part, size_t bytes);

 private:
  std::byte* acc();
  void end_term();
  void finish_row();

  const WeightedSum sum_;
  const Folder folder_;
  const size_t elem_bytes_;
  std::vector<std::byte> acc_;  // of one row; empty before the first
  size_t term_ = 0;             // the next one
  size_t offset_ = 0;           // the bytes of it that are summed
  bool started_ = false;        // the row has a term
};

}  // namespace a2a
