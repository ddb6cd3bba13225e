// Maps reductions to HCCL's types and operations.
#pragma once

#include "a2a/types.h"
#include "transport/hccl/hccl_api.h"

namespace a2a::hccl {

struct Reduction {
  Type type;
  size_t bytes;  // of an element of that type
  ReduceOp op;
};

// Throws Error(unsupported), which names both arguments, where HCCL has no such type or operation.
Reduction reduction_of(Fold fold, DType dtype);

}  // namespace a2a::hccl
