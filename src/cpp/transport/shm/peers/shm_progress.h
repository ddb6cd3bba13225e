// The progress of a rank whose peers share its memory: its seat, which says whether it sleeps, and its bell, which
// wakes it.
#pragma once

#include <memory>

#include "runtime/progress.h"
#include "transport/shm/peers/local_peer.h"
#include "transport/shm/peers/process_memory.h"
#include "transport/shm/protocol/protocol.h"

namespace a2a::shm {

void futex_wake(BellWord& bell);

// Wakes a peer if it sleeps. Call before_waking() once before a series of these.
inline void wake(const Sleeper& peer) {
  if (must_wake(*peer.seat, *peer.bell)) futex_wake(*peer.bell);
}

class ShmProgress final : public Progress {
 public:
  // Returns the progress of the calling thread. Communicators keep it alive, also when they are used from other
  // threads.
  static std::shared_ptr<ShmProgress> of_this_thread();

  ShmProgress();
  ~ShmProgress() override;

  ProcessMemory& memory() { return memory_; }
  const SeatWords* seat() const { return seat_; }
  uint64_t seat_offset() const { return memory_.arena().offset(reinterpret_cast<const std::byte*>(seat_)); }
  uint32_t bell_index() const { return bell_index_; }

  // Wakes the other threads of this rank that sleep.
  void wake_own() {
    before_waking<StdAtomics>();
    wake({seat_, bell_});
  }

  // How often the bell has rung. A peer that gives up or leaves always rings.
  uint32_t rings() const { return bell_->rings.load(std::memory_order_relaxed); }

 private:
  void announce_cpu() override;
  void ring_own() override;
  Woken sleep_unless(const std::function<bool()>& news, const std::function<Nap()>& nap) override;

  ProcessMemory& memory_;
  uint32_t bell_index_;
  BellWord* bell_;
  SeatWords* seat_;
};

void wake_always(const LocalPeer& peer);

}  // namespace a2a::shm
