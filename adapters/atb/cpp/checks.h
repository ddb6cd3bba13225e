// The constraints on counts, displacements and tensors, in ATB's order. All throw StatusError.
#pragma once

#include <cstdint>
#include <span>

#include "a2a/atb.h"
#include "group.h"

namespace a2a::atb {

struct Counts {
  std::span<const int64_t> sendCounts, sdispls, recvCounts, rdispls;  // elements
};

// When the operation is made: as many entries as ranks, none negative.
void check_counts(const Counts& counts, int size);

// When the input is known: every range inside its tensor. Returns sum(recvCounts), the elements of the output.
int64_t check_bounds(const Counts& counts, int64_t elems);

// What this library asks beyond ATB: ranges of the output do not overlap, and what the rank sends to itself is what it
// expects from itself.
void check_counts_further(const Counts& counts, int rank);

// Dtype and format of one tensor of the table; `dtype` says that it must be this one.
void check_kind(const TensorDesc& desc, const std::string& name);
void check_kind(const TensorDesc& desc, const std::string& name, aclDataType dtype);

}  // namespace a2a::atb
