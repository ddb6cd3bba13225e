// How a rank waits: one place for all of its communicators, so that each wait advances every operation in flight and two
// communicators used in different order by different ranks cannot block each other.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "a2a/types.h"
#include "transport/shm/host.h"
#include "transport/shm/neighbour.h"

namespace a2a::shm {

// What takes part in progress: a transport with operations in flight.
class Active {
 public:
  virtual ~Active() = default;
  // Does what can be done without waiting. Returns whether anything moved.
  virtual bool advance() = 0;
  // Looks for what no word in shared memory tells: deadlines, aborts, and, when `ask_kernel`, dead peers.
  virtual void check(Deadline::Clock::time_point now, bool ask_kernel) = 0;
};

// The waiting place of one rank: a doorbell and the communicators that ring matters to. Threads that are ranks have one
// each. All state of its transports is guarded by mutex().
class Progress {
 public:
  // Of the calling thread. Communicators keep it alive, also when they are used from other threads.
  static std::shared_ptr<Progress> of_this_thread();

  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  std::mutex& mutex() { return mutex_; }
  Host& host() { return host_; }
  uint64_t seat_offset() const { return host_.arena().offset(reinterpret_cast<const std::byte*>(seat_)); }
  uint32_t bell_index() const { return bell_index_; }

  // The following three want the mutex held.
  void enter(Active* active) { active_.push_back(active); }
  void leave(Active* active) { std::erase(active_, active); }
  bool advance();

  // How to wait depends on how crowded the host is; the most crowded communicator decides.
  void note(const Surroundings& surroundings, bool threads);

  // What a caller that polls needs: advances everything, and from time to time looks after deadlines and dead peers.
  void poll();

  // Waits until `finished` (called with the mutex held) says so; true then. False when the deadline passes or a signal
  // arrives.
  template <class Finished>
  bool wait(Finished&& finished, Deadline deadline) {
    Patience patience;
    for (;;) {
      {
        std::lock_guard lock(mutex_);
        const bool moved = advance();
        if (finished()) return true;
        if (moved) patience.renew();
        if (moved && patience.steps % kStepsPerLook != 0) continue;
      }
      if (!pause(patience, deadline)) return false;
    }
  }

 private:
  static constexpr unsigned kStepsPerLook = 64;  // at the clock, which costs as much as a few looks at a line

  // How long this wait has lasted since something moved last.
  struct Patience {
    unsigned steps = 0;
    Deadline::Clock::time_point since{};  // set at the first look at the clock
    bool exhausted = false;               // sleep from now on

    void renew() {
      ++steps;
      since = {};
      exhausted = false;
    }
  };
  // One step of waiting: spin or yield at first, sleep later. False when the deadline passed or a signal arrived.
  bool pause(Patience& patience, Deadline deadline);
  bool sleep(Patience& patience, Deadline deadline);
  void check(Deadline::Clock::time_point now);

  Host& host_;
  std::mutex mutex_;
  std::vector<Active*> active_;
  SeatWords* seat_;
  BellWord* bell_;
  uint32_t bell_index_;
  bool crowded_ = false;
  Deadline::Clock::time_point last_asked_{};
};

// Wakes a peer if it sleeps. Call before_waking() once before a round of these.
void wake(const Neighbour& peer);
void wake_always(const Neighbour& peer);

}  // namespace a2a::shm
