#include "runtime/progress.h"

#include <sched.h>

#include <algorithm>

namespace a2a {
namespace {

using namespace std::chrono_literals;

// A rank sleeps when nothing has moved for this long. It is longer than the drift between ranks that compute the same.
constexpr auto kAwake = 500us;
// The same for a rank that uses a network, which only reports complete messages: the time that some MiB take. A rank
// that sleeps earlier does not see what arrives, and all ranks of a CPU may sleep at the same time.
constexpr auto kAwakeForNetwork = 5ms;
// The longest sleep, and how often a waiting rank asks the kernel whether its peers are alive.
constexpr auto kSlice = 10ms;
// The longest sleep of a rank that waits for events which do not ring its doorbell.
constexpr auto kNap = 50us;
constexpr unsigned kYieldsPerLook = 8;

}  // namespace

void Progress::relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

Progress::Progress() = default;
Progress::~Progress() = default;

void Progress::start_thread() {
  if (!progress_thread_wanted()) return;
  thread_ =
      std::make_unique<ProgressThread>([this](const std::atomic<bool>& stop) { serve(stop); }, [this] { ring_own(); });
}

void Progress::end_thread() {
  if (inherited() && thread_ != nullptr) thread_->forget();  // the thread is the parent's
  thread_.reset();
}

bool Progress::advance() {
  bool moved = false;
  for (size_t i = 0; i < active_.size(); ++i) moved |= active_[i]->advance();
  return moved;
}

void Progress::note_slow_looks(bool from_any_thread) {
  std::unique_ptr<ProgressThread> ended;  // destroyed after the mutex is released, which the thread may want
  std::lock_guard lock(mutex_);
  slow_looks_ = true;
  if (!from_any_thread) ended = std::move(thread_);
}

void Progress::hand_over() {
  if (thread_ != nullptr) thread_->wake();
}

// When nothing moves it sleeps at once, because the CPU is for the program's computation.
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
    if (!moved) sleep(patience, Deadline::never(), [] { return false; });
  }
}

void Progress::poll() {
  {
    std::lock_guard lock(mutex_);
    if (advance()) return;
  }
  look(Deadline::never());
}

void Progress::note(bool oversubscribed, bool threads) {
  // Ranks that are threads may share an interpreter's lock, so that only one of them runs at a time.
  threads_ |= threads;
  crowded_ |= oversubscribed || threads;
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
  return true;
}

bool Progress::sleep(Patience& patience, Deadline deadline, const std::function<bool()>& finished) {
  auto slice = std::chrono::duration_cast<std::chrono::nanoseconds>(kSlice);
  const auto look_again = [&] {
    std::lock_guard lock(mutex_);
    if (advance() || finished()) patience.renew();
    if (std::ranges::any_of(active_, [](Active* active) { return active->must_look(); })) slice = kNap;
    return !patience.exhausted;
  };
  return sleep_unless(look_again, [&] {
    if (deadline.when() == Deadline::Clock::time_point::max()) return slice;
    return std::clamp<std::chrono::nanoseconds>(deadline.when() - Deadline::Clock::now(), 0ns, slice);
  });
}

}  // namespace a2a
