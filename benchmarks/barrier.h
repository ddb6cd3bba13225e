// A barrier of processes over shared memory, neutral between all contenders: it belongs to none of them.
#pragma once

#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstdint>

namespace bench {

// Written by one rank only and read by all others; padded so that neighbours are never fetched with it.
struct alignas(128) Line {
  std::atomic<uint64_t> round;
  std::atomic<uint64_t> last;  // rank 0's: which round is the last one, for all
};

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * int64_t{1000000000} + t.tv_nsec;
}

inline bool more_ranks_than_cpus(int size) {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 && size > CPU_COUNT(&allowed);
}

inline void pause_once(bool yield) {
  if (yield) {
    sched_yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until every rank has announced `round`; false after `limit_ns`, so that no rank spins beside a dead one.
inline bool meet(Line* lines, int rank, int size, uint64_t round, bool yield, int64_t limit_ns) {
  lines[rank].round.store(round, std::memory_order_release);
  int64_t deadline = 0;
  for (int peer = 0; peer < size; ++peer) {
    for (uint32_t spins = 1; lines[peer].round.load(std::memory_order_acquire) < round; ++spins) {
      pause_once(yield);
      if (spins % 4096 != 0) continue;
      if (deadline == 0) deadline = now_ns() + limit_ns;
      if (now_ns() > deadline) return false;
    }
  }
  return true;
}

// Rank 0 says before it comes to `round` that it is the last one, and every rank that has met in it hears so. All have
// to meet once more before rank 0 says so again.
inline void make_last(Line* lines, int rank, uint64_t round) {
  if (rank == 0) lines[0].last.store(round, std::memory_order_relaxed);
}
inline bool is_last(const Line* lines, uint64_t round) {
  return lines[0].last.load(std::memory_order_relaxed) == round;
}

}  // namespace bench
