#include "core/packed_copy.h"

#include <utility>

namespace a2a {

std::span<const std::byte> memory_of(const void* data, size_t bytes, std::span<const TensorLayout> layouts) {
  const auto* const first = static_cast<const std::byte*>(data);
  if (bytes == 0 || layouts.empty()) return {first, bytes};
  const Strides strides(layouts[0]);
  return {first + strides.begin(), static_cast<size_t>(strides.end() - strides.begin())};
}

Run run_of(const void* data, size_t bytes, std::span<const TensorLayout> layouts, std::optional<Strides>& strides) {
  auto* const first = static_cast<std::byte*>(const_cast<void*>(data));  // Run has one pointer type for both directions
  if (bytes == 0 || layouts.empty()) return {0, first, bytes};
  strides.emplace(layouts[0]);
  return {0, first, bytes, strides->contiguous() ? nullptr : &*strides};
}

void send_copy(Batch& batch) {
  size_t bytes = 0;
  for (const Run& run : batch.sends) bytes += run.bytes;
  batch.copy = std::make_unique_for_overwrite<std::byte[]>(bytes);
  batch.packs = batch.sends;
  batch.pack_strides = batch.strides;
  std::byte* next = batch.copy.get();
  for (Run& run : batch.sends) {
    run = {run.peer, next, run.bytes, nullptr, 0, run.shape};
    next += run.bytes;
  }
}

const void* send_copy(Batch& batch, const void* data, size_t bytes, std::span<const TensorLayout> layouts) {
  auto strides = std::make_shared<std::optional<Strides>>();
  batch.copy = std::make_unique_for_overwrite<std::byte[]>(bytes);
  batch.packs = {run_of(data, bytes, layouts, *strides)};
  batch.pack_strides = std::move(strides);
  return batch.copy.get();
}

}  // namespace a2a
