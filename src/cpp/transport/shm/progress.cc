#include "transport/shm/progress.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <new>

#include "transport/shm/faultpoint.h"
#include "transport/shm/protocol.h"

namespace a2a::shm {
namespace {

using namespace std::chrono_literals;

// With nothing new for this long a rank sleeps. Longer than ranks that compute the same thing drift apart.
constexpr auto kAwake = 500us;
// The same for a rank that takes part in a network, of which it only learns what is complete: as long as some MiB take.
// Ranks that nap meanwhile do not see what arrives, and those that share a CPU may leave it idle together.
constexpr auto kAwakeForNetwork = 5ms;
// The longest sleep, and how often a waiting rank asks the kernel whether its peers live.
constexpr auto kSlice = 10ms;
// The longest sleep of a rank that waits for news which ring no bell.
constexpr auto kNap = 50us;
constexpr unsigned kYieldsPerLook = 8;

// The futexes lie in memory that processes share, so the private kinds of operation would not do.
long futex(BellWord& bell, int operation, uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, &bell.rings, operation, value, timeout, nullptr, 0);
}

}  // namespace

void futex_wake(BellWord& bell) { futex(bell, FUTEX_WAKE, INT_MAX, nullptr); }

void Progress::relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::shared_ptr<Progress> Progress::of_this_thread() {
  thread_local std::weak_ptr<Progress> here;
  auto progress = here.lock();
  if (progress == nullptr || progress->host().inherited()) {
    progress = std::make_shared<Progress>();
    here = progress;
  }
  return progress;
}

Progress::Progress() : host_(Host::get()), bell_index_(host_.take_bell()) {
  bell_ = &host_.bell(bell_index_);
  seat_ = new (host_.arena().allocate(sizeof(SeatWords))) SeatWords{};
  if (progress_thread_wanted()) {
    thread_ = std::make_unique<ProgressThread>([this](const std::atomic<bool>& stop) { serve(stop); },
                                               [this] { ring_own(); });
  }
}

Progress::~Progress() {
  // Peers may still look at the seat, and ring the bell of a rank that is gone: both only cost a needless wake-up.
  if (host_.inherited()) {
    if (thread_ != nullptr) thread_->forget();  // it is the parent's
    return;
  }
  thread_.reset();
  host_.give_bell(bell_index_);
  host_.arena().release(reinterpret_cast<std::byte*>(seat_));
}

bool Progress::advance() {
  bool moved = false;
  for (size_t i = 0; i < active_.size(); ++i) moved |= active_[i]->advance();
  return moved;
}

void Progress::note_slow_looks() {
  std::unique_ptr<ProgressThread> ended;  // after the mutex, which it may want
  std::lock_guard lock(mutex_);
  slow_looks_ = true;
  ended = std::move(thread_);
}

void Progress::hand_over() {
  if (thread_ != nullptr) thread_->wake();
}

// Where nothing moves it sleeps at once: the CPU is for what the program computes.
void Progress::serve(const std::atomic<bool>& stop) {
  while (!stop.load(std::memory_order_relaxed)) {
    bool moved = false;
    {
      std::lock_guard lock(mutex_);
      moved = advance();
      if (std::ranges::none_of(active_, [](const Active* active) { return active->busy(); })) return;
    }
    look(Deadline::never());
    Patience patience;
    patience.exhausted = true;
    if (!moved) sleep(patience, Deadline::never());
  }
}

void Progress::ring_own() {
  ring(*bell_);
  futex_wake(*bell_);
}

void Progress::poll() {
  {
    std::lock_guard lock(mutex_);
    if (advance()) return;
  }
  look(Deadline::never());
}

void Progress::note(const Surroundings& surroundings, bool threads) {
  // Ranks that are threads may hold an interpreter's lock among them, so that one of them runs at a time.
  threads_ |= threads;
  crowded_ |= surroundings.oversubscribed() || threads;
}

bool Progress::beside_peer() {
  return std::ranges::any_of(active_, [](Active* active) { return active->beside_peer(); });
}

void Progress::spread() {
  for (Active* active : active_) active->spread();
}

void Progress::keep_apart() {
  constexpr unsigned kWaitsPerSurvey = 16;  // a fraction of a millisecond
  if (++waits_ % kWaitsPerSurvey == 0) spread();
}

bool Progress::look(Deadline deadline) {
  constexpr auto kOften = 500us;  // aborts and deadlines
  const auto now = Deadline::Clock::now();
  const bool in_time = !deadline.passed(now);
  std::lock_guard lock(mutex_);
  if (now - last_checked_ < kOften) return in_time;
  last_checked_ = now;
  const bool ask_kernel = now - last_asked_ >= kSlice;
  if (ask_kernel) last_asked_ = now;
  for (size_t i = 0; i < active_.size(); ++i) active_[i]->check(now, ask_kernel);
  if (crowded_ && ask_kernel) spread();
  return in_time;
}

bool Progress::pause(Patience& patience, Deadline deadline) {
  if (!patience.exhausted) {
    ++patience.idle;
    if (crowded_ || slow_looks_ || patience.idle == kSpins) {
      patience.spinning = false;
    } else if (patience.idle == 1) {
      std::lock_guard lock(mutex_);
      patience.spinning = !beside_peer();
    }
    if (patience.spinning) {
      relax();
      return true;
    }
    ::sched_yield();
    const auto tick = last_tick();
    if (patience.idle % kYieldsPerLook != 0 && tick == patience.tick) return true;
    patience.tick = tick;
  }
  if (!look(deadline)) return false;
  const auto now = Deadline::Clock::now();
  if (patience.since == Deadline::Clock::time_point{}) patience.since = now;
  patience.exhausted |= now - patience.since >= (slow_looks_ ? kAwakeForNetwork : kAwake);
  return patience.exhausted ? sleep(patience, deadline) : true;
}

bool Progress::sleep(Patience& patience, Deadline deadline) {
  auto slice = std::chrono::duration_cast<std::chrono::nanoseconds>(kSlice);
  const auto look_again = [&] {
    std::lock_guard lock(mutex_);
    if (advance()) patience.renew();
    if (std::ranges::any_of(active_, [](Active* active) { return active->must_look(); })) slice = kNap;
    return !patience.exhausted;
  };
  bool interrupted = false;
  sleep_unless(*seat_, *bell_, look_again, [&](uint32_t ticket) {
    if (deadline.when() != Deadline::Clock::time_point::max()) {
      slice = std::clamp<std::chrono::nanoseconds>(deadline.when() - Deadline::Clock::now(), 0ns, slice);
    }
    const timespec timeout{0, static_cast<long>(slice.count())};
    faultpoint("sleep");
    interrupted = futex(*bell_, FUTEX_WAIT, ticket, &timeout) != 0 && errno == EINTR;
  });
  return !interrupted;
}

void wake_always(const Neighbour& peer) {
  ring(*peer.bell);
  futex_wake(*peer.bell);
}

}  // namespace a2a::shm
