// How chunks are written into a ring.
#pragma once

#include <chrono>
#include <cstddef>

#include "transport/shm/copy/copy.h"

namespace a2a::shm {

// Ordinary stores leave a chunk in the writer's cache, from where the reader gets it quickest. But before a line can be
// written again, the reader's copy of it has to go, and between CPUs that share no cache that is a journey for every
// line: storing is then several times slower than past the caches. Which CPUs share a cache is not to be known from
// inside a virtual machine, and changes when the ranks or the machine's CPUs are moved. So the ring of each pair finds
// out for itself, from the time that its own stores take.
class StagingStores {
 public:
  using Clock = std::chrono::steady_clock;

  // What a KiB takes at most that stays in a cache: 22 to 110 ns were measured there, 35 past the caches. Between
  // caches 430 ns on one processor, less than 200 on another, of lines that have to come back (docs/performance.md).
  static constexpr auto kSlowest = std::chrono::nanoseconds(200), kSlowestFar = std::chrono::nanoseconds(120);

  explicit StagingStores(Clock::duration slowest = kSlowest) : slowest_(slowest) {}

  // For the next chunk.
  Stores choose() const { return streaming_left_ > 0 ? Stores::streaming : Stores::cached; }

  // Whether to tell how long it takes. Reading the clock twice takes a tenth of the time of 8 KiB, so as long as
  // nothing was slow one chunk of four is enough.
  bool is_due() { return streaming_left_ > 0 || slow_ > 0 || ++untold_ % kEvery == 0; }

  // Tells how long that chunk took.
  void took(size_t bytes, Clock::duration time) {
    if (streaming_left_ > 0) {
      --streaming_left_;
      return;
    }
    slow_ = time > slowest_ * (bytes / 1024) ? slow_ + 1 : 0;
    if (slow_ < kProof) return;
    streaming_left_ = kStreamed;
    slow_ = kProof - 1;  // one slow chunk more tells then that nothing has changed
  }

 private:
  static constexpr int kProof = 3;       // in a row: one alone may have been interrupted
  static constexpr int kStreamed = 256;  // chunks until ordinary stores are tried again
  static constexpr unsigned kEvery = 4;

  Clock::duration slowest_;  // of a KiB
  int slow_ = 0;
  int streaming_left_ = 0;
  unsigned untold_ = 0;
};

}  // namespace a2a::shm
