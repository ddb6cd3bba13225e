// Packed copies of tensors, for where memory has to be contiguous or is overwritten meanwhile. Not public.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/schedule.h"

namespace a2a {

// Returns the memory between the first and the last byte of a tensor of `bytes` bytes, gaps included.
std::span<const std::byte> memory_of(const void* data, size_t bytes, std::span<const TensorLayout> layouts);

// Returns the elements of a tensor as one run, which refers to `strides` if there are gaps.
Run run_of(const void* data, size_t bytes, std::span<const TensorLayout> layouts, std::optional<Strides>& strides);

// Have the batch send a copy, which Batch::pack() makes: of its runs, one after the other, or of a whole tensor. The
// second returns the memory of the copy, for the runs of `sends`.
void send_copy(Batch& batch);
const void* send_copy(Batch& batch, const void* data, size_t bytes, std::span<const TensorLayout> layouts);

}  // namespace a2a
