// Maps reductions to NCCL's types and operations.
#pragma once

#include "a2a/types.h"
#include "transport/nccl/nccl_api.h"

namespace a2a::nccl {

struct Reduction {
  Type type;
  size_t bytes;  // of an element of that type
  ReduceOp op;
};

// `float8`: this version folds it on this device. Throws Error(unsupported), which names both arguments, where NCCL has
// no such type or operation.
Reduction reduction_of(Fold fold, DType dtype, bool float8);

}  // namespace a2a::nccl
