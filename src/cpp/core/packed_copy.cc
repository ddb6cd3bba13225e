#include "core/packed_copy.h"

#include <cstring>

namespace a2a {

std::span<const std::byte> memory_of(const void* data, size_t bytes, std::span<const TensorLayout> layouts) {
  const auto* const first = static_cast<const std::byte*>(data);
  if (bytes == 0 || layouts.empty()) return {first, bytes};
  const Strides strides(layouts[0]);
  return {first + strides.begin(), static_cast<size_t>(strides.end() - strides.begin())};
}

std::unique_ptr<std::byte[]> packed_copy(const void* data, size_t bytes, std::span<const TensorLayout> layouts) {
  auto copy = std::make_unique_for_overwrite<std::byte[]>(bytes);
  const auto* const first = static_cast<const std::byte*>(data);
  if (layouts.empty()) {
    std::memcpy(copy.get(), first, bytes);
  } else if (bytes > 0) {
    gather(first, Strides(layouts[0]), 0, bytes, copy.get());
  }
  return copy;
}

std::unique_ptr<std::byte[]> pack_runs(std::vector<Run>& runs) {
  size_t bytes = 0;
  for (const Run& run : runs) bytes += run.bytes;
  auto copy = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::byte* next = copy.get();
  for (Run& run : runs) {
    gather(run, 0, run.bytes, next);
    run = {run.peer, next, run.bytes, nullptr, 0, run.shape};
    next += run.bytes;
  }
  return copy;
}

}  // namespace a2a
