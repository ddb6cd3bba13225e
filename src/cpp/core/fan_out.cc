#include "core/fan_out.h"

#include <algorithm>

#include "core/schedule.h"

namespace a2a {

FanOut::FanOut(std::shared_ptr<const RowCopies> copies, std::span<void* const> buffers, std::span<const size_t> extents)
    : copies_(std::move(copies)), next_(copies_->begins.size() - 1) {
  for (size_t i = 0; i < buffers.size(); ++i) buffers_.emplace_back(static_cast<std::byte*>(buffers[i]), extents[i]);
}

bool FanOut::step(Rank source) {
  const auto copies = copies_->of(source);
  size_t& next = next_[static_cast<size_t>(source)];
  for (size_t copied = 0; copied < kStepBytes && next < copies.size(); ++next) {
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const size_t bytes = copies_->row_bytes[i];
      std::byte* const rows = buffers_[i].data();
      std::copy_n(rows + static_cast<size_t>(copies[next].from) * bytes, bytes,
                  rows + static_cast<size_t>(copies[next].to) * bytes);
      copied += bytes;
    }
  }
  return next == copies.size();
}

}  // namespace a2a
