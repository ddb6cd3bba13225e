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

// Called when the operation is made. Requires as many entries as ranks, none negative.
void check_counts(const Counts& counts, int size);

// Called when the input is known. Requires every range inside its tensor. Returns sum(recvCounts), the elements of the
// output.
int64_t check_bounds(const Counts& counts, int64_t elems);

// Checks the constraints that this library adds to ATB's: ranges of the output do not overlap, and the rank's sends to
// itself equal its receives from itself.
void check_counts_further(const Counts& counts, int rank);

// Checks dtype and format of one tensor of the table; `dtype` says that it must be this one.
void check_kind(const TensorDesc& desc, const std::string& name);
void check_kind(const TensorDesc& desc, const std::string& name, aclDataType dtype);

}  // namespace a2a::atb
