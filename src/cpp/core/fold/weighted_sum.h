// The parameters of a weighted sum, besides the arriving rows.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "a2a/plan.h"

namespace a2a {

// Requires that the memory outlives the operation.
struct WeightedSum {
  std::shared_ptr<const Summands> summands;
  std::byte* out = nullptr;
  size_t row_bytes = 0;
  const float* weights = nullptr;            // of each term; nullptr: all are 1
  std::array<const std::byte*, 2> biases{};  // of the output's shape and dtype; nullptr: none
};

}  // namespace a2a
