// Decides how a sender stores chunks.
#pragma once

#include <chrono>
#include <cstddef>

#include "transport/shm/copy/copy.h"

namespace a2a::shm {

// Ordinary stores leave a chunk in the writer's cache, from where the reader gets it fastest. But first the reader's
// copy of each line has to be invalidated. Between CPUs that share no cache that makes ordinary stores several times
// slower than streaming ones. A virtual machine does not show which CPUs share a cache, and ranks move between CPUs. So
// each pair measures its own stores.
class StagingStores {
 public:
  using Clock = std::chrono::steady_clock;

  // The most time that storing a KiB takes when the lines are near (benchmarks/notes/learned.md): in this rank's cache,
  // and in the peer's.
  static constexpr auto kSlowest = std::chrono::nanoseconds(200), kSlowestFar = std::chrono::nanoseconds(120);

  explicit StagingStores(Clock::duration slowest = kSlowest) : slowest_(slowest) {}

  // The stores for the next chunk.
  Stores choose() const { return streaming_left_ > 0 ? Stores::streaming : Stores::cached; }

  // Whether the caller is to time the next chunk and call took(). The clock costs time, so while nothing was slow one
  // chunk of kEvery is enough.
  bool is_due() { return streaming_left_ > 0 || slow_ > 0 || ++untold_ % kEvery == 0; }

  // Notes the time that the chunk took.
  void took(size_t bytes, Clock::duration time) {
    if (streaming_left_ > 0) {
      --streaming_left_;
      return;
    }
    slow_ = time > slowest_ * (bytes / 1024) ? slow_ + 1 : 0;
    if (slow_ < kProof) return;
    streaming_left_ = kStreamed;
    slow_ = kProof - 1;  // one more slow chunk is enough to go back to streaming
  }

 private:
  static constexpr int kProof = 3;       // in a row: an interrupt may have slowed a single one
  static constexpr int kStreamed = 256;  // chunks until ordinary stores are tried again
  static constexpr unsigned kEvery = 4;

  Clock::duration slowest_;  // of a KiB
  int slow_ = 0;
  int streaming_left_ = 0;
  unsigned untold_ = 0;
};

}  // namespace a2a::shm
