// Copies received rows to the other places of the output that want them. Not public.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "a2a/plan.h"

namespace a2a {

// The transport calls step() for each rank whose rows have arrived. Not for concurrent use.
class FanOut {
 public:
  // `copies` are rows of these buffers; `extents` are the buffers' bytes.
  FanOut(std::shared_ptr<const RowCopies> copies, std::span<void* const> buffers, std::span<const size_t> extents);

  // Copies rows of a rank, about kStepBytes of them. Returns whether all are copied.
  bool step(Rank source);
  bool done(Rank source) const { return next_[static_cast<size_t>(source)] == copies_->of(source).size(); }

  std::span<const std::span<std::byte>> buffers() const { return buffers_; }

 private:
  std::shared_ptr<const RowCopies> copies_;
  std::vector<std::span<std::byte>> buffers_;
  std::vector<size_t> next_;  // of each rank's copies
};

}  // namespace a2a
