// Packed copies of tensors, against loops over single elements.
#include "core/packed_copy.h"

#include <algorithm>
#include <optional>

#include "check.h"
#include "core/strided_tensor.h"

namespace {

using namespace a2a;
using namespace strided_test;

TEST("what lies in gaps is packed into a copy") {
  Random random(check::seed());
  for (int round = 0; round < 100; ++round) {
    Tensor tensor = random_tensor(random, random.in(size_t{1}, size_t{4}), 4, 2);
    const TensorLayout layouts[] = {tensor.layout()};
    const Bytes packed = tensor.packed();
    Batch whole;
    const void* const copy = send_copy(whole, tensor.data(), packed.size(), layouts);
    whole.pack();
    CHECK(std::equal(packed.begin(), packed.end(), static_cast<const std::byte*>(copy)));
    const auto memory = memory_of(tensor.data(), packed.size(), layouts);
    CHECK(memory.data() >= tensor.memory.data());
    CHECK(memory.data() + memory.size() <= tensor.memory.data() + tensor.memory.size());
    std::byte* const base[] = {tensor.data()};
    const Segment half[] = {{0, 0, 0, packed.size() / 2}, {1, 0, packed.size() / 2, packed.size() / 2}};
    Batch batch;
    set_runs(batch, {half, base, layouts}, {});
    send_copy(batch);
    batch.pack();
    tensor.fill(random);
    CHECK(!has_gaps(batch.sends));
    CHECK(bytes_of(batch.sends[0]) == part_of(packed, 0, packed.size() / 2));
    CHECK(bytes_of(batch.sends[1]) == part_of(packed, packed.size() / 2, packed.size() / 2));
  }
  CHECK_EQ(memory_of(nullptr, 0, {}).size(), 0);
}

TEST("a tensor without gaps is a run of plain memory") {
  Random random(check::seed());
  for (int round = 0; round < 100; ++round) {
    Tensor tensor = random_tensor(random, random.in(size_t{1}, size_t{3}), 3, 4);
    const TensorLayout layouts[] = {tensor.layout()};
    std::optional<Strides> strides;
    const Run run = run_of(tensor.data(), tensor.bytes(), layouts, strides);
    CHECK_EQ(run.strides == nullptr, Strides(tensor.layout()).contiguous());
    CHECK(bytes_of(run) == tensor.packed());
  }
}

}  // namespace
