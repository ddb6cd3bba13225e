// What can be said of a tensor without knowing the operation.
#pragma once

#include <cstdint>
#include <string>

#include "a2a/atb/types.h"

namespace a2a::atb {

// Bytes of one element; 0 for what has none.
size_t elem_bytes(aclDataType dtype);

// "float16 (1)"
std::string to_string(aclDataType dtype);

// Whether AllToAllV moves it, and how the core calls it.
bool takes(aclDataType dtype, DType* core);

// "[3, 4, 5]"
std::string shape_text(const TensorDesc& desc);

// ATB's limits on any tensor: 1 to 8 dimensions, 1 byte to 256 GiB. `name` is "inTensor[0]" or alike.
void check_extent(const TensorDesc& desc, const std::string& name);

}  // namespace a2a::atb
