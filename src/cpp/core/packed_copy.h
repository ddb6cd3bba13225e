// Packed copies of tensors, for where memory has to be contiguous or is overwritten meanwhile. Not public.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "core/schedule.h"

namespace a2a {

// Returns the memory between the first and the last byte of a tensor of `bytes` bytes, gaps included.
std::span<const std::byte> memory_of(const void* data, size_t bytes, std::span<const TensorLayout> layouts);

// Returns a copy of the tensor's elements in C order.
std::unique_ptr<std::byte[]> packed_copy(const void* data, size_t bytes, std::span<const TensorLayout> layouts);

// Returns a copy of the runs' bytes, one run after the other, and makes the runs refer to the copy.
std::unique_ptr<std::byte[]> pack_runs(std::vector<Run>& runs);

}  // namespace a2a
