// Which operations in flight share memory.
#include "core/in_flight.h"

#include <array>
#include <vector>

#include "check.h"
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

TEST("a batch reads what it sends and writes what it receives") {
  a2a::Batch batch;
  batch.sends = {{0, memory.data(), 8}, {1, memory.data() + 8, 8}};
  batch.recvs = {{0, memory.data() + 32, 8}};
  Footprint input, output, other;
  input.write(part(12, 13));
  output.read(part(39, 40));
  other.write(part(16, 32));
  const Footprint footprint = footprint_of(batch);
  CHECK(footprint.conflicts(input) && footprint.conflicts(output) && !footprint.conflicts(other));
}

}  // namespace
