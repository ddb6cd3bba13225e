// A weighted sum of rows from several hosts: receives all of them, and sums them at the end.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/fold/summing.h"
#include "core/schedule.h"

namespace a2a::hosts {

class ReceivedSum {
 public:
  // Replaces the receives of the batch by memory for the rows. Requires a batch with summands. Throws std::bad_alloc.
  ReceivedSum(Batch& batch, int size);

  // Sums a part of the rows. Call when all have come. Returns whether all are summed.
  bool step();

 private:
  Summing summing_;
  size_t row_bytes_;
  std::unique_ptr<std::byte[]> rows_;   // by rank, those of a rank in the order of their terms
  std::vector<const std::byte*> next_;  // of each rank
};

}  // namespace a2a::hosts
