#include "core/strided/strides.h"

#include <string>
#include <vector>

#include "a2a/types.h"

namespace a2a {

Strides::Strides(const TensorLayout& layout)
    : Strides(layout, layout.shape.empty() ? 1 : static_cast<size_t>(layout.shape[static_cast<size_t>(layout.axis)])) {}

Strides::Strides(const TensorLayout& layout, size_t count) : piece_(layout.elem_bytes) {
  // Goes from the innermost dimension outwards; std::reverse() below puts the outermost one first.
  for (size_t i = layout.shape.size(); i-- > 0;) {
    const size_t entries = static_cast<int>(i) == layout.axis ? count : static_cast<size_t>(layout.shape[i]);
    const auto stride = static_cast<ptrdiff_t>(layout.strides[i]);
    if (entries > 1) append(entries, stride);
  }
  std::reverse(dim_, dim_ + dims_);
  size_t below = piece_;
  end_ = static_cast<ptrdiff_t>(piece_);
  for (int i = dims_; i-- > 0;) {
    dim_[i].bytes = below;
    below *= dim_[i].count;
    const ptrdiff_t last = static_cast<ptrdiff_t>(dim_[i].count - 1) * dim_[i].stride;
    (last < 0 ? begin_ : end_) += last;
  }
}

std::optional<Strides> Strides::of(size_t piece, std::span<const Dim> dims) {
  if (piece == 0 || piece > PTRDIFF_MAX || dims.size() > kMostDims) return std::nullopt;
  Strides strides(piece);
  strides.end_ = static_cast<ptrdiff_t>(piece);
  size_t bytes = piece;
  for (size_t i = dims.size(); i-- > 0;) {
    const auto [count, stride, _] = dims[i];
    ptrdiff_t last;
    ptrdiff_t& side = stride < 0 ? strides.begin_ : strides.end_;
    if (count == 1) continue;  // its stride means nothing
    if (count == 0 || __builtin_mul_overflow(count - 1, stride, &last) || __builtin_add_overflow(side, last, &side)) {
      return std::nullopt;
    }
    strides.dim_[strides.dims_++] = {count, stride, bytes};
    if (__builtin_mul_overflow(bytes, count, &bytes)) return std::nullopt;
  }
  std::reverse(strides.dim_, strides.dim_ + strides.dims_);
  return strides;
}

void Strides::append(size_t count, ptrdiff_t stride) {
  if (dims_ == 0 && stride == static_cast<ptrdiff_t>(piece_)) {
    piece_ *= count;
    return;
  }
  if (dims_ > 0) {
    Dim& inner = dim_[dims_ - 1];
    if (stride == static_cast<ptrdiff_t>(inner.count) * inner.stride) {
      inner.count *= count;
      return;
    }
  }
  if (dims_ == kMostDims) {
    throw Error(Code::invalid_argument, "a tensor with gaps between the entries of more than " +
                                            std::to_string(kMostDims) + " dimensions; pass a contiguous one");
  }
  dim_[dims_++] = {count, stride, 0};
}

bool are_apart(const TensorLayout& layout) {
  std::vector<std::pair<size_t, size_t>> dims;  // stride, count
  for (size_t i = 0; i < layout.shape.size(); ++i) {
    if (layout.shape[i] == 0) return true;
    const int64_t stride = layout.strides[i];
    if (layout.shape[i] > 1) dims.emplace_back(stride < 0 ? -stride : stride, layout.shape[i]);
  }
  std::ranges::sort(dims);
  size_t extent = layout.elem_bytes;  // of all dimensions of smaller strides
  for (const auto& [stride, count] : dims) {
    if (stride < extent) return false;
    extent += stride * (count - 1);
  }
  return true;
}

}  // namespace a2a
