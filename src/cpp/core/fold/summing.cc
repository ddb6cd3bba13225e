#include "core/fold/summing.h"

#include <algorithm>
#include <string>

namespace a2a {

Summing::Summing(const WeightedSum& sum, DType dtype)
    : sum_(sum), folder_(Fold::sum, dtype), elem_bytes_(dtype.bytes()) {
  if (!folder_.scales()) {
    throw Error(Code::invalid_argument, "a weighted sum is not defined for " + to_string(dtype));
  }
  if (sum.row_bytes % elem_bytes_ != 0) {
    throw Error(Code::invalid_argument,
                std::to_string(sum.row_bytes) + " bytes are no whole number of " + to_string(dtype));
  }
}

std::byte* Summing::acc() {
  if (acc_.empty()) acc_.resize(sum_.row_bytes / elem_bytes_ * folder_.acc_bytes());
  return acc_.data();
}

Rank Summing::next() {
  const std::vector<Rank>& sources = sum_.summands->sources;
  if (sum_.row_bytes == 0) return kNobody;
  while (term_ < sources.size() && sources[term_] == kNobody) end_term();
  return term_ < sources.size() ? sources[term_] : kNobody;
}

void Summing::add(const std::byte* part, size_t bytes) {
  const size_t elems = bytes / elem_bytes_;
  std::byte* const acc = this->acc() + offset_ / elem_bytes_ * folder_.acc_bytes();
  if (sum_.weights != nullptr) {
    const float weight = sum_.weights[term_];
    started_ ? folder_.add(part, elems, weight, acc) : folder_.start(part, elems, weight, acc);
  } else {
    started_ ? folder_.add(part, elems, acc) : folder_.start(part, elems, acc);
  }
  offset_ += bytes;
  if (offset_ < sum_.row_bytes) return;
  offset_ = 0;
  started_ = true;
  end_term();
}

void Summing::end_term() {
  if (++term_ % sum_.summands->terms == 0) finish_row();
}

void Summing::finish_row() {
  const size_t row = term_ / sum_.summands->terms - 1, at = row * sum_.row_bytes, elems = sum_.row_bytes / elem_bytes_;
  if (elems == 0) return;
  std::byte* const acc = this->acc();
  if (!started_) std::ranges::fill(acc_, std::byte{0});
  for (const std::byte* bias : sum_.biases) {
    if (bias != nullptr) folder_.add(bias + at, elems, acc);
  }
  folder_.finish(acc, elems, 1, sum_.out + at);
  started_ = false;
}

}  // namespace a2a
