// How a rank waits: one place for all of its communicators, so that each wait advances every operation in flight and
// two communicators used in different order by different ranks cannot block each other.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "a2a/types.h"
#include "runtime/fork_guard.h"
#include "runtime/last_tick.h"
#include "runtime/progress_thread.h"

namespace a2a {

// What takes part in progress: a transport with operations in flight.
class Active {
 public:
  virtual ~Active() = default;
  // Does what can be done without waiting. Returns whether anything moved.
  virtual bool advance() = 0;
  // Looks for what no word in shared memory tells: deadlines, aborts, and, when `ask_kernel`, dead peers.
  virtual void check(Deadline::Clock::time_point now, bool ask_kernel) = 0;
  // Where ranks share CPUs: sees to it that this one does not share its CPU with more of them than necessary.
  virtual void spread() {}
  // Whether one of the ranks that it may wait for ran on this very CPU last: then nothing comes from it while this one
  // spins.
  virtual bool beside_peer() { return false; }
  // Whether an operation is in flight.
  virtual bool busy() const { return false; }
  // Whether what it waits for rings no bell, so that somebody has to look.
  virtual bool must_look() { return false; }
};

// The waiting place of one rank: a doorbell and the communicators that ring matters to. Threads that are ranks have one
// each. All state of its transports is guarded by mutex(). What the doorbell is, the transport of host memory says.
class Progress {
 public:
  Progress();
  virtual ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  std::mutex& mutex() { return mutex_; }
  bool inherited() const { return guard_.inherited(); }
  void refuse_if_inherited() const { guard_.refuse_if_inherited(); }

  // The following three want the mutex held.
  void enter(Active* active) { active_.push_back(active); }
  void leave(Active* active) { std::erase(active_, active); }
  bool advance();

  // How to wait depends on how crowded the host is; the most crowded communicator decides.
  void note(bool oversubscribed, bool threads);
  bool crowded() const { return crowded_; }
  // A look takes microseconds, because it asks a network: spinning would take the CPU from whoever is to answer, and
  // yielding costs little beside it. Nor does every network let another thread ask it: there is no progress thread
  // then.
  void note_slow_looks();

  // What a caller that polls needs: advances everything, and from time to time looks after deadlines and dead peers.
  void poll();

  // With the mutex held: whether there is a progress thread.
  bool is_served() const { return thread_ != nullptr; }
  // With the mutex held: has the progress thread, if there is one, look after what is in flight.
  void hand_over();

  // Waits until `finished` (called with the mutex held) says so; true then. False when the deadline passes or a signal
  // arrives.
  template <class Finished>
  bool wait(Finished&& finished, Deadline deadline) {
    Patience patience;
    announce_cpu();
    for (bool first = true;; first = false) {
      bool moved = false;
      {
        std::lock_guard lock(mutex_);
        if (first && crowded_) keep_apart();
        moved = advance();
        if (finished()) return true;
        if (moved) patience.renew();
      }
      if (moved ? patience.moves % kMovesPerLook == 0 && !look(deadline) : !pause(patience, deadline)) return false;
      if (!moved && patience.exhausted && !sleep(patience, deadline, std::ref(finished))) return false;
    }
  }

  // Whether a caller may hold on to a lock that others want, such as an interpreter's, while it waits briefly. Not
  // where these may be the very ranks that it waits for, nor where a look takes long.
  bool may_linger() const { return !threads_ && !slow_looks_; }

  // As wait(), but only for as long as a rank with a CPU of its own spins; where ranks share CPUs, for as long as turns
  // take of ranks that do nothing but exchange.
  template <class Finished>
  bool wait_briefly(Finished&& finished) {
    if (!may_linger()) return false;
    announce_cpu();
    const auto began = last_tick();
    for (unsigned looks = 0; looks < kSpins; ++looks) {
      std::unique_lock lock(mutex_, std::try_to_lock);
      if (!lock.owns_lock()) return false;
      if (looks == 0 && crowded_) keep_apart();
      const bool moved = advance();
      if (finished()) return true;
      if (crowded_ ? last_tick() != began : moved || (looks == 0 && beside_peer())) return false;
      lock.unlock();
      if (!crowded_) {
        relax();
      } else if (!moved) {
        ::sched_yield();
      }
    }
    return false;
  }

 protected:
  // Starts the progress thread, if one is wanted, and ends it; before the doorbell goes, in the latter case.
  void start_thread();
  void end_thread();

 private:
  // Publishes the CPU that this thread runs on.
  virtual void announce_cpu() = 0;
  // Wakes whoever sleeps here.
  virtual void ring_own() = 0;
  // Says that this rank sleeps, and sleeps until somebody rings, for at most as long as `slice` says; not at all when
  // `news` then finds some. False when a signal arrived.
  virtual bool sleep_unless(const std::function<bool()>& news,
                            const std::function<std::chrono::nanoseconds()>& slice) = 0;

  // A rank with a CPU of its own spins for so many steps (a few microseconds); then it yields between its looks,
  // because whoever it waits for may stand in line for this very CPU. Ranks that are known to share CPUs yield from the
  // start, and so does one that finds a peer on its own, where the kernel puts two while a stranger uses another.
  static constexpr unsigned kSpins = 128;
  // A step copies at most 4 MiB for each peer, so that a long copy is looked up from often enough.
  static constexpr unsigned kMovesPerLook = 4;

  // How long this wait has lasted since something moved last.
  struct Patience {
    unsigned moves = 0;
    unsigned idle = 0;                               // looks since then
    Deadline::Clock::time_point since{};             // set at the first look at the clock
    Deadline::Clock::time_point tick = last_tick();  // of the last look, or the beginning
    bool spinning = true;                            // before it yields
    bool exhausted = false;                          // sleep from now on

    void renew() {
      ++moves;
      idle = 0;
      since = {};
      spinning = true;
      exhausted = false;
    }
  };
  static void relax();
  bool beside_peer();  // with the mutex held
  // Has the communicators look at how the ranks are spread over the CPUs, from time to time: in short waits here, in
  // longer ones in look(). Both with the mutex held.
  void spread();
  void keep_apart();
  // At the clock: false when the deadline passed; from time to time looks for aborts, deadlines and deaths. Also then:
  // where programs that compute share the CPU, a caller that waits in slices may not get here before each of them ends.
  bool look(Deadline deadline);
  // One step of waiting: spin or yield, until the patience is exhausted and it is time to sleep. False when the
  // deadline passed. One yield takes as long as thousands otherwise where programs that compute share the CPU, so there
  // is a look each tick.
  bool pause(Patience& patience, Deadline deadline);
  // False when a signal arrived. Not when it is finished: another thread may have taken what came, and nobody rings
  // again.
  bool sleep(Patience& patience, Deadline deadline, const std::function<bool()>& finished);

  // What the progress thread does: moves what is in flight and sleeps in between, until nothing is, or `stop`.
  void serve(const std::atomic<bool>& stop);

  const ForkGuard guard_;
  std::mutex mutex_;
  std::vector<Active*> active_;
  bool crowded_ = false;
  bool threads_ = false;  // among the ranks
  bool slow_looks_ = false;
  unsigned waits_ = 0;
  Deadline::Clock::time_point last_asked_{}, last_checked_{};
  std::unique_ptr<ProgressThread> thread_;  // where A2A_PROGRESS_THREAD asks for one
};

}  // namespace a2a
