// Whether the output of a reduction overlaps memory that may still be read.
#include "core/reduction.h"

#include <array>

#include "check.h"

namespace {

using namespace a2a;

std::array<std::byte, 64> memory;

bool overwrites(const Plan& plan, size_t send, size_t recv) {
  return overwrites_what_is_sent(plan, memory.data() + send, memory.data() + recv, {});
}

TEST("an output apart from the input overwrites nothing") {
  const Plan plan = Plan::allreduce(1, 2, 1, 8, false);
  CHECK(!overwrites(plan, 0, 8) && !overwrites(plan, 8, 0));
  CHECK(overwrites(plan, 0, 7) && overwrites(plan, 7, 0) && overwrites(plan, 0, 0));
}

TEST("the output may be exactly what the rank sends to itself") {
  const std::array<int64_t, 3> counts{4, 4, 4};
  const Plan plan = Plan::reduce_scatter(1, 3, 1, counts);
  CHECK(!overwrites(plan, 0, 4));  // its own part
  CHECK(overwrites(plan, 0, 0) && overwrites(plan, 0, 5) && overwrites(plan, 0, 8));
}

TEST("a rank that receives nothing overwrites nothing") { CHECK(!overwrites(Plan::reduce(1, 2, 0, 8), 0, 0)); }

TEST("of tensors with gaps the memory between their ends counts") {
  const std::vector<int64_t> shape{4}, step{2};
  const std::array<TensorLayout, 1> layout{TensorLayout{shape, step, 1}};
  Call call;
  call.recv_layouts = layout;
  const Plan plan = Plan::allreduce(0, 2, 1, 4, false);
  CHECK(overwrites_what_is_sent(plan, memory.data() + 6, memory.data(), call));
  CHECK(!overwrites_what_is_sent(plan, memory.data() + 7, memory.data(), call));
}

}  // namespace
