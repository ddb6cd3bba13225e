// Copies without gaps, where memory has to be contiguous or is written meanwhile. Not public.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "core/schedule.h"

namespace a2a {

// The memory between the first and the last byte of a tensor of so many bytes, gaps included.
std::span<const std::byte> memory_of(const void* data, size_t bytes, std::span<const TensorLayout> layouts);

// The tensor's elements in C order.
std::unique_ptr<std::byte[]> packed_copy(const void* data, size_t bytes, std::span<const TensorLayout> layouts);

// The runs' bytes, one run after the other. The runs are those of the copy then.
std::unique_ptr<std::byte[]> pack_runs(std::vector<Run>& runs);

}  // namespace a2a
