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
// The longest sleep of a rank that waits for events of which nothing tells.
constexpr auto kNap = 50us;
// The same for one that a descriptor tells of the events, while nothing tells it that its doorbell rings: this part of
// its wait so far, and not more than that.
constexpr int kPartOfWait = 16;
constexpr auto kDeafNap = 2ms;
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
  if (progress_thread_wish() == ThreadWish::always) thread_ = new_thread();
}

void Progress::serve_if_automatic() noexcept {
  try {
    if (progress_thread_wish() != ThreadWish::automatic) return;
    const std::lock_guard lock(mutex_);
    if (thread_ == nullptr && !threads_) thread_ = new_thread();
  } catch (const std::exception&) {  // nobody has asked for it
  }
}

std::unique_ptr<ProgressThread> Progress::new_thread() {
  return std::make_unique<ProgressThread>([this](const std::atomic<bool>& stop) { serve(stop); },
                                          [this] { ring_own(); });
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
  Patience patience;
  while (!stop.load(std::memory_order_relaxed)) {
    bool moved = false;
    {
      std::lock_guard lock(mutex_);
      moved = advance();
      if (std::ranges::none_of(active_, [](const Active* active) { return active->busy(); })) return;
    }
    look(Deadline::never());
    if (moved) patience.renew();
    if (patience.since == Deadline::Clock::time_point{}) patience.since = Deadline::Clock::now();
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

void Progress::note(bool oversubscribed, bool threads, bool peers) {
  peers_ |= peers;
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

void Progress::interrupt(const Patience& patience) {
  if (!patience.exhausted) return;
  const std::lock_guard lock(mutex_);
  lull_since_ = patience.since;
  lull_until_ = last_tick();
}

void Progress::resume(Patience& patience) {
  if (lull_since_ == Deadline::Clock::time_point{}) return;
  if (patience.tick - lull_until_ <= kTick) {
    patience.since = lull_since_;
    patience.exhausted = true;
  }
  lull_since_ = {};
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

int Progress::events_to_sleep_on() {
  int found = -1;
  for (Active* active : active_) {
    if (!active->must_look()) continue;
    const int events = active->events();
    if (events < 0 || (found >= 0 && events != found)) return -1;
    found = events;
  }
  return found;
}

bool Progress::sleep(Patience& patience, Deadline deadline, const std::function<bool()>& finished) {
  Nap nap{kSlice};
  const auto look_again = [&] {
    std::lock_guard lock(mutex_);
    if (advance() || finished()) patience.renew();
    if (patience.exhausted && std::ranges::any_of(active_, [](Active* active) { return active->must_look(); })) {
      nap.longest = kNap;
      const std::chrono::nanoseconds most = peers_ || thread_ != nullptr ? kDeafNap : kSlice;
      // Events that nobody takes, such as those of a connection that a forked child holds open, would end each sleep.
      if (!patience.in_vain) nap.events = events_to_sleep_on();
      if (nap.events >= 0) {
        const auto waited = Deadline::Clock::now() - patience.since;
        nap.longest = std::clamp<std::chrono::nanoseconds>(waited / kPartOfWait, kNap, most);
      }
    }
    return !patience.exhausted;
  };
  const auto choose = [&] {
    if (deadline.when() == Deadline::Clock::time_point::max()) return nap;
    const std::chrono::nanoseconds left = deadline.when() - Deadline::Clock::now();
    return Nap{std::clamp<std::chrono::nanoseconds>(left, 0ns, nap.longest), nap.events};
  };
  const Woken woken = sleep_unless(look_again, choose);
  patience.in_vain = woken == Woken::by_events;
  return woken != Woken::by_signal;
}

}  // namespace a2a
