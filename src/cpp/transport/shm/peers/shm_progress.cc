#include "transport/shm/peers/shm_progress.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <new>

#include "runtime/faultpoint.h"
#include "transport/shm/policy/placement.h"

namespace a2a::shm {
namespace {

// The futexes lie in memory that processes share, so FUTEX_PRIVATE_FLAG must not be set.
long futex(BellWord& bell, int operation, uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, &bell.rings, operation, value, timeout, nullptr, 0);
}

}  // namespace

void futex_wake(BellWord& bell) { futex(bell, FUTEX_WAKE, INT_MAX, nullptr); }

std::shared_ptr<ShmProgress> ShmProgress::of_this_thread() {
  thread_local std::weak_ptr<ShmProgress> here;
  auto progress = here.lock();
  if (progress == nullptr || progress->inherited()) {
    progress = std::make_shared<ShmProgress>();
    here = progress;
  }
  return progress;
}

ShmProgress::ShmProgress()
    : memory_(ProcessMemory::get()), bell_index_(memory_.take_bell()), bell_(&memory_.bell(bell_index_)) {
  seat_ = new (memory_.arena().allocate(sizeof(SeatWords))) SeatWords{};
  start_thread();
}

ShmProgress::~ShmProgress() {
  end_thread();
  // Peers may still read the seat, and ring the bell of a rank that is gone: both only cost a needless wake-up.
  if (inherited()) return;
  memory_.give_bell(bell_index_);
  memory_.arena().release(reinterpret_cast<std::byte*>(seat_));
}

void ShmProgress::announce_cpu() { shm::announce_cpu(*seat_); }

void ShmProgress::ring_own() {
  ring(*bell_);
  futex_wake(*bell_);
}

Progress::Woken ShmProgress::sleep_unless(const std::function<bool()>& news, const std::function<Nap()>& nap) {
  Woken woken = Woken::otherwise;
  shm::sleep_unless(*seat_, *bell_, news, [&](uint32_t ticket) {
    const auto [longest, events] = nap();
    const timespec timeout{0, static_cast<long>(longest.count())};
    faultpoint("sleep");
    if (events < 0) {
      if (futex(*bell_, FUTEX_WAIT, ticket, &timeout) != 0 && errno == EINTR) woken = Woken::by_signal;
    } else if (rings() == ticket) {
      pollfd event{events, POLLIN, 0};
      const int ready = ::ppoll(&event, 1, &timeout, nullptr);
      if (ready > 0) woken = Woken::by_events;
      if (ready < 0 && errno == EINTR) woken = Woken::by_signal;
    }
  });
  return woken;
}

void wake_always(const LocalPeer& peer) {
  ring(*peer.bell);
  futex_wake(*peer.bell);
}

}  // namespace a2a::shm
