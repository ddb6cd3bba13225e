// The facts that two ranks compare before a byte moves, and the time of the comparison.
#include "core/facts.h"

#include <chrono>

#include "a2a/communicator.h"
#include "check.h"

namespace {

using namespace a2a;

const Signature kSignature{Op::alltoallv, Memory::host, {2, 32, 1}, 7, 0};

std::vector<Run> runs(std::initializer_list<size_t> sizes) {
  static std::byte memory[1 << 14];
  std::vector<Run> made;
  for (const size_t bytes : sizes) made.push_back({1, memory, bytes});
  return made;
}

Facts facts(const Signature& signature, std::span<const Run> sends, std::span<const Run> recvs) {
  Facts made;
  set_common(made, signature);
  add_sizes(made, sends, recvs);
  return made;
}

TEST("each single fact makes a disagreement") {
  const auto few = runs({4096}), many = runs({1024, 3072}), otherwise = runs({2048, 2048});
  const Facts mine = facts(kSignature, many, few), theirs = facts(kSignature, few, many);
  CHECK(agree(mine, theirs) && agree(theirs, mine));
  const auto differs = [&](auto change) {
    Facts head = theirs;
    change(head);
    return !agree(mine, head) && !agree(head, mine);
  };
  CHECK(differs([](Facts& h) { h.sent += 4; }));
  CHECK(differs([](Facts& h) { h.expected -= 4; }));
  CHECK(differs([](Facts& h) { h.dtype ^= 1; }));
  CHECK(differs([](Facts& h) { h.plan = 3; }));
  CHECK(differs([](Facts& h) { h.op = static_cast<uint8_t>(Op::allgather); }));
  CHECK(differs([](Facts& h) { h.memory = static_cast<uint8_t>(Memory::npu); }));
  CHECK(differs([&](Facts& h) { h = facts(kSignature, few, otherwise); }));
}

TEST("a disagreement tells what differs, on both sides alike") {
  const auto run = runs({4096});
  const auto said = [&](Signature other) {
    const Facts mine = facts(kSignature, run, run), theirs = facts(other, run, run);
    const std::string text = disagreement(kSignature, 4, 0, mine, 1, theirs);
    CHECK_EQ(disagreement(other, 4, 1, theirs, 0, mine), text);
    return text;
  };
  CHECK_EQ(said({Op::alltoallv, Memory::host, {2, 64, 1}, 7, 0}),
           "alltoallv #7: rank 0 uses dtype float32, rank 1 uses dtype float64");
  CHECK_EQ(said({Op::allgather, Memory::npu, {2, 32, 1}, 7, 0}),
           "operation #7: rank 0 calls alltoallv, rank 1 calls allgather");
  CHECK_EQ(said({Op::alltoallv, Memory::host, {2, 32, 1}, 7, 3}),
           "alltoallv #7: rank 0 runs no plan, rank 1 runs plan 3");
  CHECK_EQ(said({Op::alltoallv, Memory::host, {2, 32, 1}, 7, number_of_routing(3)}),
           "alltoallv #7: rank 0 uses no plan, rank 1 uses routing 3");
  // alltoall and alltoallv are equal on the host and different on a device. The facts here differ in something else.
  const Facts mine = facts({Op::alltoall, Memory::host, {2, 32, 1}, 7, 0}, run, run);
  const Facts theirs = facts({Op::alltoall, Memory::npu, {2, 32, 1}, 7, 0}, run, run);
  // Rows of different widths, which numbers of rows would hide: both sides say the same.
  {
    Facts wide = mine, narrow = mine;
    wide.sent = wide.expected = 128, narrow.sent = narrow.expected = 64;
    const std::string text = disagreement(kSignature, 64, 0, wide, 1, narrow, 32);
    CHECK(text.find(": rank 0 has rows of 16 columns, rank 1 has rows of 8 columns (float32)") != std::string::npos);
    CHECK_EQ(disagreement(kSignature, 32, 1, narrow, 0, wide, 64), text);
    CHECK(disagreement(kSignature, 64, 0, wide, 1, narrow).find("columns") == std::string::npos);
  }
  CHECK_EQ(disagreement({Op::alltoall, Memory::host, {2, 32, 1}, 7, 0}, 4, 0, mine, 1, theirs),
           "alltoall #7: rank 0 uses memory of kind host, rank 1 uses memory of kind npu");
}

// For each peer of one operation the facts of both sides are made once, and compared once.
TEST("nanoseconds for each pair") {
  using Clock = std::chrono::steady_clock;
  const auto run = runs({4096});
  const Facts theirs = facts(kSignature, run, run);
  auto best = std::chrono::nanoseconds::max();
  constexpr int kTimes = 100'000;
  int agreed = 0;
  for (int round = 0; round < 20; ++round) {
    const auto begin = Clock::now();
    for (int i = 0; i < kTimes; ++i) {
      Facts mine = facts(kSignature, run, run);
      asm volatile("" : : "r"(&mine) : "memory");  // keeps the compiler from removing it
      agreed += agree(mine, theirs) ? 1 : 0;
    }
    best = std::min(best, std::chrono::nanoseconds(Clock::now() - begin));
  }
  CHECK_EQ(agreed, 20 * kTimes);
  std::cout << "comparing costs " << static_cast<double>(best.count()) / kTimes << " ns for each pair\n";
}

}  // namespace
