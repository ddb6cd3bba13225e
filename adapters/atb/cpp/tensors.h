// Facts about a tensor that do not depend on the operation.
#pragma once

#include <cstdint>
#include <string>

#include "a2a/atb/types.h"

namespace a2a::atb {

// Returns the bytes of one element; 0 for a dtype without whole bytes.
size_t elem_bytes(aclDataType dtype);

// "float16 (1)"
std::string to_string(aclDataType dtype);

// Returns whether AllToAllV moves the dtype; then *core is the core's.
bool takes(aclDataType dtype, DType* core);

// "[3, 4, 5]"
std::string shape_text(const TensorDesc& desc);

// Checks ATB's limits on any tensor: 1 to 8 dimensions, 1 byte to 256 GiB. `name` is "inTensor[0]" or alike.
void check_extent(const TensorDesc& desc, const std::string& name);

}  // namespace a2a::atb
