#include "transport/hosts/received_sum.h"

#include <algorithm>

namespace a2a::hosts {

ReceivedSum::ReceivedSum(Batch& batch, int size)
    : summing_(batch.sum, batch.signature.dtype),
      row_bytes_(batch.sum.row_bytes),
      rows_(std::make_unique_for_overwrite<std::byte[]>(batch.recvs.size() * row_bytes_)),
      next_(static_cast<size_t>(size)) {
  for (size_t i = batch.recvs.size(); i-- > 0;) {
    Run& run = batch.recvs[i];
    run.data = rows_.get() + i * row_bytes_;
    next_[static_cast<size_t>(run.peer)] = run.data;
  }
}

bool ReceivedSum::step() {
  for (size_t summed = 0; summed < kStepBytes; summed += row_bytes_) {
    const Rank from = summing_.next();
    if (from == Summing::kNobody) return true;
    const std::byte*& row = next_[static_cast<size_t>(from)];
    summing_.add(row, row_bytes_);
    row += row_bytes_;
  }
  return false;
}

}  // namespace a2a::hosts
