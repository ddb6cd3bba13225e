// Lets a rank wait: one place for all of its communicators, so that each wait advances every operation in flight and
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

// A transport with operations in flight, which takes part in progress.
class Active {
 public:
  virtual ~Active() = default;
  // Advances its operations without waiting. Returns whether anything moved.
  virtual bool advance() = 0;
  // Checks for events that no word in shared memory shows: deadlines, aborts, and, when `ask_kernel`, dead peers.
  virtual void check(Deadline::Clock::time_point now, bool ask_kernel) = 0;
  // Where ranks share CPUs: moves the calling thread if another CPU has fewer ranks.
  virtual void spread() {}
  // Whether a rank for which it may wait ran on this CPU last. That rank cannot run while this one spins.
  virtual bool beside_peer() { return false; }
  // Whether an operation is in flight.
  virtual bool busy() const { return false; }
  // Whether it waits for events that do not ring the doorbell, so that the rank has to check for them.
  virtual bool must_look() { return false; }
  // Returns a descriptor that is readable while there are such events, or -1: then nobody tells of them.
  virtual int events() { return -1; }
};

// The progress of one rank: a doorbell and the communicators for which it rings. Each thread that is a rank has its
// own. mutex() guards all state of its transports. The transport of host memory implements the doorbell.
class Progress {
 public:
  Progress();
  virtual ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  std::mutex& mutex() { return mutex_; }
  bool inherited() const { return guard_.inherited(); }
  void refuse_if_inherited() const { guard_.refuse_if_inherited(); }

  // The following three require the mutex.
  void enter(Active* active) { active_.push_back(active); }
  void leave(Active* active) { std::erase(active_, active); }
  bool advance();

  // Sets how to wait, which depends on whether ranks share CPUs, and on whether there are peers that ring the doorbell.
  // The most crowded communicator decides.
  void note(bool oversubscribed, bool threads, bool peers);
  bool crowded() const { return crowded_; }
  // Notes that a look at the state of operations is slow, because it asks a network. Spinning would then take the CPU
  // from the rank that has to answer, while a yield costs little in comparison. Unless the network allows calls from
  // any thread, this ends the progress thread.
  void note_slow_looks(bool from_any_thread);

  // For callers that poll: advances everything, and from time to time checks for deadlines and dead peers.
  void poll();

  // Starts the progress thread, if it is left to the library and can be had, and no rank is a thread.
  void serve_if_automatic() noexcept;
  // Whether there is a progress thread. Requires the mutex.
  bool is_served() const { return thread_ != nullptr; }
  // Makes the progress thread, if there is one, advance the operations in flight. Requires the mutex.
  void hand_over();

  // Waits until `finished`, which is called with the mutex held, returns true. Returns false when the deadline passes
  // or a signal arrives.
  template <class Finished>
  bool wait(Finished&& finished, Deadline deadline) {
    Patience patience;
    announce_cpu();
    for (bool first = true;; first = false) {
      bool moved = false;
      {
        std::lock_guard lock(mutex_);
        if (first) {
          resume(patience);
          if (crowded_) keep_apart();
        }
        moved = advance();
        if (finished()) return true;
        if (moved) patience.renew();
      }
      if (moved ? patience.moves % kMovesPerLook == 0 && !look(deadline) : !pause(patience, deadline)) break;
      if (!moved && patience.exhausted && !sleep(patience, deadline, std::ref(finished))) break;
    }
    interrupt(patience);
    return false;
  }

  // Whether a caller may keep a lock that others want, such as an interpreter's, while it waits briefly. It may not
  // where the ranks for which it waits may want that lock, or where a look is slow.
  bool may_linger() const { return !threads_ && !slow_looks_; }

  // As wait(), but at most for as long as a rank with a CPU of its own spins. Where ranks share CPUs, it waits until
  // the next tick of the clock at most.
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
  // How long to sleep, and on what: a descriptor, or with -1 the doorbell.
  struct Nap {
    std::chrono::nanoseconds longest;
    int events = -1;
  };
  enum class Woken : uint8_t { otherwise, by_events, by_signal };

  // start_thread() starts the progress thread, if the environment asks for one in any case. end_thread() ends it; call
  // it before the doorbell is destroyed.
  void start_thread();
  void end_thread();

 private:
  // Publishes the CPU that this thread runs on.
  virtual void announce_cpu() = 0;
  // Wakes the threads that sleep here.
  virtual void ring_own() = 0;
  // Publishes that this rank sleeps, and sleeps as nap() says. Does not sleep if news() then returns true. A ring of
  // the doorbell does not end a sleep on a descriptor.
  virtual Woken sleep_unless(const std::function<bool()>& news, const std::function<Nap()>& nap) = 0;

  // The number of steps for which a rank with a CPU of its own spins. Then it yields between its looks, because the
  // rank for which it waits may be queued for this CPU. Ranks that are known to share CPUs yield from the start, and so
  // does one that finds a peer on its own CPU: the kernel may put two ranks on one CPU while another program uses a
  // second.
  static constexpr unsigned kSpins = 128;
  // A step copies at most 4 MiB for each peer, so a long copy does not delay the checks.
  static constexpr unsigned kMovesPerLook = 4;

  // The state of a wait since something moved last.
  struct Patience {
    unsigned moves = 0;
    unsigned idle = 0;                               // looks since something moved
    Deadline::Clock::time_point since{};             // set when the clock is first read
    Deadline::Clock::time_point tick = last_tick();  // of the last look, or of the beginning of the wait
    bool spinning = true;                            // false: it yields
    bool exhausted = false;                          // it sleeps from now on
    bool in_vain = false;                            // events woke it, and nothing had moved

    void renew() {
      ++moves;
      idle = 0;
      since = {};
      spinning = true;
      exhausted = false;
      in_vain = false;
    }
  };
  // Callers wait in slices, between which they look for signals: a slice goes on as the one before ended. resume()
  // requires the mutex.
  void interrupt(const Patience& patience);
  void resume(Patience& patience);
  static void relax();
  bool beside_peer();  // with the mutex held
  // Make the communicators check from time to time how the ranks are spread over the CPUs: keep_apart() in short waits,
  // look() in longer ones. Both require the mutex.
  void spread();
  void keep_apart();
  // Reads the clock. Returns false when the deadline has passed. From time to time it checks for aborts, deadlines and
  // deaths, also when the deadline has passed: where other programs share the CPU, a caller that waits in slices may
  // not get here before each of its slices ends.
  bool look(Deadline deadline);
  // One step of waiting: spins or yields, until the patience is exhausted and it is time to sleep. Returns false when
  // the deadline has passed. Where other programs share the CPU one yield may take as long as thousands elsewhere, so
  // it looks at each tick.
  bool pause(Patience& patience, Deadline deadline);
  // The descriptor of all that must_look(), or -1 if they have several, or one has none. Requires the mutex.
  int events_to_sleep_on();
  // Returns false when a signal arrived. Does not sleep when `finished` is true: another thread may have received the
  // data, and no peer rings again.
  bool sleep(Patience& patience, Deadline deadline, const std::function<bool()>& finished);

  // The loop of the progress thread: advances the operations in flight and sleeps in between, until there are none, or
  // `stop`.
  void serve(const std::atomic<bool>& stop);
  std::unique_ptr<ProgressThread> new_thread();

  const ForkGuard guard_;
  std::mutex mutex_;
  std::vector<Active*> active_;
  bool crowded_ = false;
  bool threads_ = false;  // some ranks are threads
  bool peers_ = false;    // some may ring the doorbell
  bool slow_looks_ = false;
  unsigned waits_ = 0;
  Deadline::Clock::time_point last_asked_{}, last_checked_{};
  Deadline::Clock::time_point lull_since_{}, lull_until_{};  // nothing moved at the end of the last wait
  std::unique_ptr<ProgressThread> thread_;                   // nullptr: there is none
};

}  // namespace a2a
