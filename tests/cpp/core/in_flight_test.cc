// Which operations in flight share memory.
#include "core/in_flight.h"

#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

#include "check.h"
#include "core/fan_out.h"
#include "core/message.h"

namespace {

using a2a::Footprint;

std::array<std::byte, 64> memory;

std::span<const std::byte> part(size_t begin, size_t end) { return std::span(memory).subspan(begin, end - begin); }

TEST("two footprints conflict where one writes what the other uses") {
  Footprint reads, writes, elsewhere;
  reads.read(part(8, 16));
  writes.write(part(15, 20));
  elsewhere.write(part(16, 20));
  CHECK(!reads.conflicts(reads));
  CHECK(writes.conflicts(writes));
  CHECK(reads.conflicts(writes) && writes.conflicts(reads));
  CHECK(!reads.conflicts(elsewhere) && !elsewhere.conflicts(reads));
  CHECK(!Footprint().conflicts(writes) && !writes.conflicts(Footprint()));
  Footprint empty;
  empty.write(part(10, 10));
  CHECK(!empty.conflicts(reads));
}

TEST("spans of any order and overlap are compared byte by byte") {
  check::Random random;
  for (int i = 0; i < 20000; ++i) {
    Footprint both[2];
    std::array<std::array<bool, 64>, 2> written{}, used{};
    for (size_t side = 0; side < 2; ++side) {
      for (size_t n = random() % 5; n > 0; --n) {
        const size_t begin = random() % 60, end = begin + random() % (random() % 4 == 0 ? 64 - begin : 4);
        const bool writes = random() % 2 == 0;
        writes ? both[side].write(part(begin, end)) : both[side].read(part(begin, end));
        for (size_t at = begin; at < end; ++at) {
          used[side][at] = true;
          written[side][at] |= writes;
        }
      }
    }
    bool expected = false;
    for (size_t at = 0; at < 64; ++at) {
      expected |= (written[0][at] && used[1][at]) || (used[0][at] && written[1][at]);
    }
    if (!CHECK_EQ(both[0].conflicts(both[1]), expected) || !CHECK_EQ(both[1].conflicts(both[0]), expected)) return;
  }
}

// A view of up to three dimensions of `memory`, and the bytes in it.
struct View {
  std::vector<int64_t> shape, strides;
  size_t first = 0, elem_bytes = 1;

  explicit View(check::Random& random) {
    elem_bytes = size_t{1} << random() % 3;
    size_t below = 0, above = 0;
    for (size_t n = random() % 4; n > 0; --n) {
      const auto count = static_cast<int64_t>(1 + random() % 4), stride = static_cast<int64_t>(random() % 13) - 4;
      const auto extent = static_cast<size_t>((count - 1) * std::abs(stride));
      if (below + above + extent + elem_bytes > 64) continue;
      (stride < 0 ? below : above) += extent;
      shape.push_back(count), strides.push_back(stride);
    }
    first = below + random() % (64 - below - above - elem_bytes + 1);
  }
  a2a::TensorLayout layout() const { return {shape, strides, elem_bytes}; }
  std::array<bool, 64> bytes() const {
    std::array<bool, 64> used{};
    std::vector<int64_t> offsets{static_cast<int64_t>(first)};
    for (size_t i = 0; i < shape.size(); ++i) {
      std::vector<int64_t> all;
      for (const int64_t at : offsets) {
        for (int64_t k = 0; k < shape[i]; ++k) all.push_back(at + k * strides[i]);
      }
      offsets = std::move(all);
    }
    for (const int64_t at : offsets) {
      for (size_t k = 0; k < elem_bytes; ++k) used[static_cast<size_t>(at) + k] = true;
    }
    return used;
  }
};

TEST("of memory with gaps the elements are compared, and not the gaps") {
  check::Random random;
  size_t apart = 0;
  for (int i = 0; i < 20000; ++i) {
    const View views[2] = {View(random), View(random)};
    const a2a::Strides strides[2] = {a2a::Strides(views[0].layout()), a2a::Strides(views[1].layout())};
    Footprint both[2];
    for (size_t side = 0; side < 2; ++side) {
      const bool gaps = !strides[side].contiguous();
      const a2a::Run run{0, memory.data() + views[side].first, strides[side].bytes(), gaps ? &strides[side] : nullptr};
      side == 0 ? both[side].write(run) : both[side].read(run);
    }
    const auto mine = views[0].bytes(), theirs = views[1].bytes();
    bool expected = false;
    for (size_t at = 0; at < 64; ++at) expected |= mine[at] && theirs[at];
    if (!CHECK_EQ(both[0].conflicts(both[1]), expected) || !CHECK_EQ(both[1].conflicts(both[0]), expected)) return;
    apart += !expected;
  }
  CHECK(apart > 1000);
}

TEST("columns of a matrix are apart, however many rows it has") {
  const auto* const first = reinterpret_cast<std::byte*>(size_t{1} << 20);  // is not read
  const std::vector<int64_t> shape{int64_t{1} << 24}, step{int64_t{1} << 8};
  const a2a::Strides strides(a2a::TensorLayout{shape, step, 8});
  const auto column = [&](size_t at) {
    Footprint footprint;
    footprint.write(a2a::Run{0, const_cast<std::byte*>(first) + 8 * at, strides.bytes(), &strides});
    return footprint;
  };
  CHECK(!column(0).conflicts(column(1)) && !column(31).conflicts(column(2)));
  CHECK(column(3).conflicts(column(3)));
}

TEST("a batch reads what it sends and writes what it receives") {
  a2a::Batch batch;
  batch.sends = {{0, memory.data(), 8}, {1, memory.data() + 8, 8}};
  batch.recvs = {{0, memory.data() + 32, 8}};
  batch.packs = {{0, memory.data() + 48, 8}};
  Footprint input, output, packed, copied, other;
  void* const rows = memory.data() + 40;
  const size_t extent = 4;
  const auto copies = std::make_shared<const a2a::RowCopies>(a2a::RowCopies{{0, 0}, {}, {1}});
  batch.fan_out = std::make_shared<a2a::FanOut>(copies, std::span(&rows, 1), std::span(&extent, 1));
  packed.write(part(55, 56));
  copied.read(part(43, 44));
  input.write(part(12, 13));
  output.read(part(39, 40));
  other.write(part(16, 32));
  const Footprint footprint = footprint_of(batch);
  CHECK(footprint.conflicts(packed) && footprint.conflicts(copied));
  CHECK(footprint.conflicts(input) && footprint.conflicts(output) && !footprint.conflicts(other));
}

TEST("parts of one block are one block, however many ranks they are for") {
  const auto* const first = reinterpret_cast<std::byte*>(size_t{1} << 20);  // is not read
  const std::vector<int64_t> shape{1 << 10, 1 << 8}, step{1 << 13, 16};
  const a2a::Strides strides(a2a::TensorLayout{shape, step, 8});
  const auto parts = [&](size_t at) {  // the left or the right half of the even columns
    Footprint footprint;
    const a2a::Run all{0, const_cast<std::byte*>(first) + at, strides.bytes(), &strides};
    for (size_t i = 0; i < 1024; ++i) footprint.write(all.part(i * strides.bytes() / 1024, strides.bytes() / 1024));
    return footprint;
  };
  CHECK(!parts(0).conflicts(parts(1 << 12)));  // a comparison of each pair of parts takes longer than the test may
  CHECK(parts(0).conflicts(parts(1 << 11)));
}

TEST("a message waits for the latest one that writes all of its memory, and not for those before") {
  const auto message = [](bool sends, size_t begin, size_t bytes) {
    return std::make_shared<a2a::MessageWork>(nullptr, a2a::Message{sends, 0, 0, memory.data() + begin, bytes, {}});
  };
  const std::vector all{message(false, 0, 8), message(false, 0, 16), message(true, 4, 8), message(true, 12, 8)};
  const auto waits_for = [&](const std::shared_ptr<a2a::MessageWork>& work) {
    a2a::Predecessors found;
    add_conflicting(found, all, work->footprint());
    return found;
  };
  a2a::Predecessors of_send = waits_for(message(true, 0, 8)), of_recv = waits_for(message(false, 0, 20));
  all[1]->finish(0);
  CHECK(of_send.finished() && !of_recv.finished());
  all[2]->finish(0), all[3]->finish(0);
  CHECK(!of_recv.finished());
  CHECK_EQ(of_recv.describe(), "recv from rank 0 with tag 0, which uses the same memory");
  all[0]->finish(0);
  CHECK(of_recv.finished());
  CHECK_EQ(of_recv.describe(), "");
}

TEST("one footprint writes all of another") {
  const std::vector<int64_t> shape{3, 2}, step{16, 2}, other_step{16, 3};
  const a2a::Strides strides(a2a::TensorLayout{shape, step, 1}), same = strides;
  const a2a::Strides others(a2a::TensorLayout{shape, other_step, 1});
  const auto written = [](const a2a::Run& run) {
    Footprint footprint;
    footprint.write(run);
    return footprint;
  };
  const auto view = [](const a2a::Strides& of) { return a2a::Run{0, memory.data() + 8, of.bytes(), &of}; };
  const Footprint all = written({0, memory.data(), 64}), eight = written({0, memory.data() + 8, 8});
  Footprint reads, two;
  reads.read(part(8, 16));
  two.write(a2a::Run{0, memory.data(), 8});
  two.write(a2a::Run{0, memory.data() + 16, 8});
  CHECK(all.writes_all(all) && all.writes_all(eight) && all.writes_all(two) && all.writes_all(written(view(strides))));
  CHECK(!eight.writes_all(all) && !two.writes_all(all) && !two.writes_all(eight));
  CHECK(all.writes_all(reads) && eight.writes_all(reads) && !reads.writes_all(reads));
  CHECK(written(view(strides)).writes_all(written(view(same))));
  CHECK(!written(view(strides)).writes_all(written(view(others))));
  CHECK(!written(view(strides)).writes_all(written({0, memory.data() + 9, 1})));
}

}  // namespace
