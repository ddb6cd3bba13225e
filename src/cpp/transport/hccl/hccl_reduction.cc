#include "transport/hccl/hccl_reduction.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "transport/device/reduction.h"

namespace a2a::hccl {
namespace {

using namespace device;

// The types that HCCL's documentation lists for the products A2 and A3. Unsigned integers have the sums and products of
// signed ones, bit for bit.
struct Row {
  DType dtype;
  Type type;
  size_t bytes;
  bool multiplies, compares;
};
constexpr Row kTypes[] = {
    {{kInt, 8}, Type::int8, 1, true, true},       {{kUInt, 8}, Type::int8, 1, true, false},
    {{kInt, 16}, Type::int16, 2, false, true},    {{kUInt, 16}, Type::int16, 2, false, false},
    {{kInt, 32}, Type::int32, 4, true, true},     {{kUInt, 32}, Type::int32, 4, true, false},
    {{kInt, 64}, Type::int64, 8, true, true},     {{kUInt, 64}, Type::int64, 8, true, false},
    {{kFloat, 16}, Type::float16, 2, true, true}, {{kBfloat, 16}, Type::bfloat16, 2, false, true},
    {{kFloat, 32}, Type::float32, 4, true, true}, {{kComplex, 64}, Type::float32, 4, false, false},
    {{kBool, 8}, Type::int8, 1, false, true},
};

std::optional<ReduceOp> op_of(Fold fold, const Row& row) {
  if (fold == Fold::sum) return ReduceOp::sum;
  if (fold == Fold::prod && row.multiplies) return ReduceOp::prod;
  if (fold == Fold::max && row.compares) return ReduceOp::max;
  if (fold == Fold::min && row.compares) return ReduceOp::min;
  return std::nullopt;  // averages and operations on bits among them
}

}  // namespace

Reduction reduction_of(Fold fold, DType dtype) {
  const auto* const row = std::ranges::find(kTypes, dtype, &Row::dtype);
  if (row == std::end(kTypes)) throw no_reduction("HCCL", fold, dtype);
  const auto op = op_of(fold_of_numbers(fold, dtype), *row);
  if (!op) throw no_reduction("HCCL", fold, dtype);
  return {row->type, row->bytes, *op};
}

}  // namespace a2a::hccl
