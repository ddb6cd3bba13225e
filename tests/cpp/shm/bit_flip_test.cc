// A peer whose shared words have flipped bits never harms this rank: it raises or it succeeds; it does not crash, hang
// or write outside of its buffers. `bit_flip_test --flips=1000000` is the long version.
#include <array>

#include "../../fuzz/hostile_peer.h"
#include "check.h"
#include "ranks.h"

namespace {

using namespace fuzz;

constexpr size_t kSizes[] = {0, 1, 81, inline_bytes(2) + 1, 5000, 40000, 200000};

uint64_t wanted_flips() { return std::stoull(check::option("flips", "30000")); }

std::vector<Kind> kinds_for(size_t bytes) {
  if (bytes == 0) return {Kind::none};
  std::vector<Kind> kinds{Kind::staged, Kind::shared, Kind::cma};
  if (bytes <= inline_bytes(2)) kinds.push_back(Kind::inlined);
  return kinds;
}

Played draw_operation(check::Random& random, uint64_t number) {
  Played operation;
  operation.number = number;
  operation.sends = kSizes[random.in(size_t{0}, std::size(kSizes) - 1)];
  operation.recvs = kSizes[random.in(size_t{0}, std::size(kSizes) - 1)];
  const auto kinds = kinds_for(operation.recvs);
  operation.kind = kinds[random.in(size_t{0}, kinds.size() - 1)];
  operation.runs = operation.recvs > 3 && random.chance(0.3) ? 3 : 1;
  operation.refused = random.chance(0.02);
  operation.folds = random.chance(0.3);
  return operation;
}

TEST("without flipped bits every operation succeeds") {
  HostilePeer hostile;
  hostile.allow_cma(true);
  uint64_t number = 0;
  for (const size_t sends : kSizes) {
    for (const size_t recvs : kSizes) {
      for (const Kind kind : kinds_for(recvs)) {
        for (const size_t runs : {size_t{1}, size_t{3}}) {
          const check::Note note("kind", static_cast<uint64_t>(kind)), second("bytes", recvs);
          if (recvs <= runs && runs > 1) continue;
          Played operation{.number = ++number, .sends = sends, .recvs = recvs, .runs = runs, .kind = kind};
          CHECK(play(hostile, operation, [] {}));
          operation.number = ++number, operation.folds = true;
          CHECK(play(hostile, operation, [] {}));
        }
      }
    }
  }
}

TEST("flipped bits in lines, counters, lists of runs and texts") {
  check::Random random(check::seed());
  HostilePeer hostile;
  uint64_t flips = 0, good = 0, bad = 0;
  while (flips < wanted_flips()) {
    hostile.allow_cma(random.chance(0.5));
    hostile.start_again();
    for (uint64_t n = 1; n <= 4; ++n) {
      const Played operation = draw_operation(random, n);
      // The line and the counters are a small part of the block, and the most important one.
      std::byte* const line = reinterpret_cast<std::byte*>(&hostile.block().line(first_step(n), HostilePeer::kMe));
      const bool fine = play(hostile, operation, [&] {
        for (int i = random.in(0, 2); i > 0; --i, ++flips) {
          std::byte* const at = random.chance(0.5)
                                    ? line + random.in(size_t{0}, line_bytes(2) - 1)
                                    : hostile.controlled() + random.in(size_t{0}, HostilePeer::kControlled - 1);
          *at ^= std::byte{1} << random.in(0, 7);
        }
      });
      ++(fine ? good : bad);
      if (!fine) break;
    }
  }
  std::cout << "  " << flips << " flips: " << good << " operations succeeded, " << bad << " raised" << std::endl;
  CHECK(good > 0 && bad > 0);
}

// Rank 1 is a real process that flips bits in all memory that it shares, its counters and its tensors, while both
// exchange.
void flip_own_segment(std::stop_token stop, uint64_t seed) {
  check::Random random(seed);
  ProcessMemory& memory = ProcessMemory::get();
  while (!stop.stop_requested()) {
    Arena& arena = random.chance(0.8) ? memory.arena() : memory.common();
    const size_t words = arena.allocated() / sizeof(uint64_t);
    auto* const word = reinterpret_cast<uint64_t*>(arena.base()) + random.in(size_t{0}, std::min(words, size_t{2048}));
    __atomic_fetch_xor(word, uint64_t{1} << random.in(0, 63), __ATOMIC_RELAXED);
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void exchange_until_broken(Communicator& comm) {
  for (int i = 0; i < 200 && !comm.broken(); ++i) {
    const size_t n = size_t{1} << i % 16;
    std::vector<uint8_t> send(2 * n), recv(2 * n);
    const std::array<int64_t, 2> counts{static_cast<int64_t>(n), static_cast<int64_t>(n)};
    const Plan plan = Plan::alltoallv(comm.rank(), 2, 1, {counts, {}}, 2 * n, {counts, {}}, 2 * n);
    const void* from = send.data();
    void* to = recv.data();
    try {
      Call call;
      call.deadline = Deadline::after_seconds(0.05);
      comm.start(plan, {&from, 1}, {&to, 1}, call)->wait();
    } catch (const Error&) {
    }
  }
}

TEST("flipped bits in the segment of a process") {
#if defined(__SANITIZE_THREAD__)
  return;  // it does not support fork() well
#endif
  for (uint64_t round = 0; round < std::stoull(check::option("rounds", "5")); ++round) {
    const check::Note note("round", round);
    auto processes = ranks::start_processes(2, [round](Communicator& comm) {
      std::jthread flipping;
      if (comm.rank() == 1) flipping = std::jthread(flip_own_segment, check::seed() + round);
      exchange_until_broken(comm);
      try {
        comm.shrink(Deadline::after_seconds(0.1));
      } catch (const Error&) {
      }
      if (comm.rank() == 1) _exit(0);  // its own words are no longer valid
    });
    CHECK_EQ(processes.wait()[0], 0);
  }
}

}  // namespace
