// What becomes of bytes that have come: copied, folded, summed with weights, or discarded.
#include "transport/shm/sinks/sinks.h"

#include <array>
#include <cstring>

#include "one_pair.h"

namespace {

using namespace shm_test;

constexpr DType kInt32{0, 32, 1}, kFloat{2, 32, 1};
using Ints = std::vector<int32_t>;

Ints ints_of(const Bytes& bytes) {
  Ints ints(bytes.size() / sizeof(int32_t));
  std::memcpy(ints.data(), bytes.data(), ints.size() * sizeof(int32_t));
  return ints;
}

template <class T>
std::byte* bytes_of(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

sinks::Pairs pairs_of(OnePair& pair) {
  static constexpr std::array<Rank, 1> kAwaited{kPeer};
  return {pair.peer.membership(), pair.operation, kAwaited};
}

// A sum of this rank's elements and the peer's.
Batch fold_of(Ints& own, Ints& output) {
  Batch batch;
  batch.signature = {Op::allreduce, Memory::host, kInt32, 0, 0, Fold::sum};
  batch.folds = true;
  const size_t bytes = own.size() * sizeof(int32_t);
  batch.sends = {{kMe, bytes_of(own), bytes}};
  batch.recvs = {{kMe, bytes_of(output), bytes}, {kPeer, bytes_of(output), bytes}};
  return batch;
}

TEST("a fold has one result for all ways, whose pieces are of any length") {
  check::Random random(check::seed());
  OnePair pair;
  for (const Kind kind : {Kind::inlined, Kind::staged, Kind::shared, Kind::cma}) {
    for (const size_t elems : {size_t{1}, size_t{100}, size_t{150'000}}) {
      if (kind == Kind::inlined && elems * 4 > inline_bytes(2)) continue;
      const check::Note note("kind", static_cast<uint64_t>(kind)), second("elems", elems);
      Ints own(elems), output(elems, -1), expected(elems);
      for (int32_t& one : own) one = static_cast<int32_t>(random());
      pair.begin(fold_of(own, output));
      const Ints theirs = ints_of(pair.send(kind, elems * 4, 1, random));
      pair.open();
      for (int step = 0; step < 100 && pair.operation.reduction.left > 0; ++step) sinks::fold(pairs_of(pair));
      for (size_t i = 0; i < elems; ++i) {
        expected[i] = static_cast<int32_t>(static_cast<uint32_t>(own[i]) + static_cast<uint32_t>(theirs[i]));
      }
      CHECK(output == expected);
      CHECK(pair.operation.pair(kPeer).in == Pair::In::arrived && pair.operation.own().in_left == 0);
    }
  }
}

TEST("a fold with labels has several outputs, each of the ranks that have a receive with its label") {
  Ints own{1, 2, 3, 4, 5}, both(2), mine(3), theirs(2);
  check::Random random(check::seed());
  Batch batch;
  batch.signature = {Op::reshard, Memory::host, kInt32, 0, 0, Fold::sum, 1};
  batch.folds = true;
  batch.sends = {{kMe, bytes_of(own), 20}};
  batch.recvs = {{kMe, bytes_of(both), 8, nullptr, 0, 1},
                 {kMe, bytes_of(mine), 12, nullptr, 0, 3},
                 {kPeer, bytes_of(both), 8, nullptr, 0, 1},
                 {kPeer, bytes_of(theirs), 8, nullptr, 0, 2}};
  OnePair pair;
  pair.begin(std::move(batch));
  CHECK_EQ(pair.operation.load.received, size_t{28});
  const Ints sent = ints_of(pair.send(Kind::staged, 16, 1, random));
  pair.open();
  for (int step = 0; step < 10; ++step) sinks::fold(pairs_of(pair));
  const auto sum = [](int32_t a, int32_t b) {
    return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  };
  CHECK(both == Ints{sum(1, sent[0]), sum(2, sent[1])});
  CHECK(theirs == Ints{sent[2], sent[3]} && mine == Ints{3, 4, 5});
}

TEST("nothing is folded before the line of every rank has come") {
  OnePair pair;
  Ints own(10, 1), output(10, -1);
  pair.begin(fold_of(own, output));
  CHECK(!sinks::fold(pairs_of(pair)));
  CHECK(output == Ints(10, -1));
}

TEST("what is discarded is taken from the peer, and written nowhere") {
  check::Random random(check::seed());
  OnePair pair;
  Ints own(100'000, 1), output(100'000, -1);
  pair.begin(fold_of(own, output));
  pair.send(Kind::staged, own.size() * 4, 1, random);
  pair.open();
  while (sinks::discard(pairs_of(pair))) continue;
  CHECK(pair.operation.pair(kPeer).in == Pair::In::arrived);
  CHECK(output == Ints(100'000, -1));
}

TEST("rows are summed with their weights, those of this rank and of the peer in the order of their terms") {
  check::Random random(check::seed());
  OnePair pair;
  constexpr size_t kElems = 3000, kAll = 2 * kElems;  // of a row, and of both
  std::vector<float> own(kAll), output(kAll, -1), expected(kAll), theirs(kAll);
  const std::array<float, 4> weights{0.5, 3, 2, 1};
  for (size_t i = 0; i < kAll; ++i) {
    own[i] = static_cast<float>(i % 777), theirs[i] = static_cast<float>(i % 555);
    expected[i] = i < kElems ? 0.5f * theirs[i] + 3 * own[i] : 2 * theirs[i] + own[i];
  }
  Batch batch;
  batch.signature = {Op::combine, Memory::host, kFloat, 0, 0};
  batch.sends = {{kMe, bytes_of(own), kAll * 4}};
  batch.recvs = {{kMe, bytes_of(output), kAll * 4}, {kPeer, bytes_of(output), kAll * 4}};
  batch.sum.summands = std::make_shared<Summands>(Summands{{kPeer, kMe, kPeer, kMe}, 2});
  batch.sum.out = bytes_of(output);
  batch.sum.row_bytes = kElems * 4;
  batch.sum.weights = weights.data();
  pair.begin(std::move(batch));
  CHECK(!sinks::sum(pairs_of(pair)));  // the peer's row comes first
  pair.send(Kind::shared, kAll * 4, 1, random);
  std::memcpy(pair.peer.data(), theirs.data(), kAll * 4);
  pair.open();
  for (int step = 0; step < 100 && pair.operation.summing->next() != Summing::kNobody; ++step) {
    sinks::sum(pairs_of(pair));
  }
  CHECK(output == expected);
}

TEST("a rank's own bytes are copied in steps, or at once where both overlap") {
  OnePair pair;
  Bytes memory(2'000'000);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 31 >> 8);
  const Bytes before = memory;
  for (const size_t distance : {size_t{1'000'000}, size_t{10}}) {
    const check::Note note("distance", distance);
    memory = before;
    Batch batch;
    batch.sends = {{kMe, memory.data(), 1'000'000}};
    batch.recvs = {{kMe, memory.data() + distance, 1'000'000}};
    pair.begin(std::move(batch));
    int steps = 0;
    for (; pair.operation.own().in_left > 0 && steps < 100; ++steps) sinks::copy_own(pair.operation);
    CHECK_EQ(steps, distance == 10 ? 1 : 2);
    CHECK(std::equal(before.begin(), before.begin() + 1'000'000, memory.begin() + static_cast<ptrdiff_t>(distance)));
  }
}

}  // namespace
