#include "transport/nccl/nccl_reduction.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "transport/device/reduction.h"

namespace a2a::nccl {
namespace {

using namespace device;

struct Row {
  DType dtype;
  Type type;
  size_t bytes;
};
constexpr Row kTypes[] = {
    {{kInt, 8}, Type::int8, 1},         {{kUInt, 8}, Type::uint8, 1},        {{kInt, 32}, Type::int32, 4},
    {{kUInt, 32}, Type::uint32, 4},     {{kInt, 64}, Type::int64, 8},        {{kUInt, 64}, Type::uint64, 8},
    {{kFloat, 16}, Type::float16, 2},   {{kBfloat, 16}, Type::bfloat16, 2},  {{kFloat, 32}, Type::float32, 4},
    {{kFloat, 64}, Type::float64, 8},   {{kE4m3fn, 8}, Type::float8e4m3, 1}, {{kE5m2, 8}, Type::float8e5m2, 1},
    {{kComplex, 64}, Type::float32, 4}, {{kComplex, 128}, Type::float64, 8}, {{kBool, 8}, Type::uint8, 1},
};

std::optional<ReduceOp> op_of(Fold fold) {
  switch (fold) {
    case Fold::sum:
    case Fold::premul_sum:
      return ReduceOp::sum;
    case Fold::prod:
      return ReduceOp::prod;
    case Fold::max:
      return ReduceOp::max;
    case Fold::min:
      return ReduceOp::min;
    case Fold::avg:
      return ReduceOp::avg;
    default:  // NCCL has no operations on bits
      return std::nullopt;
  }
}

}  // namespace

Reduction reduction_of(Fold fold, DType dtype, bool float8) {
  const auto* const row = std::ranges::find(kTypes, dtype, &Row::dtype);
  const auto op = op_of(fold_of_numbers(fold, dtype));
  const bool known = row != std::end(kTypes) && (float8 || row->type < Type::float8e4m3);
  if (!known || !op) throw no_reduction("NCCL", fold, dtype);
  return {row->type, row->bytes, *op};
}

}  // namespace a2a::nccl
