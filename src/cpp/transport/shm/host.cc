#include "transport/shm/host.h"

#include <pthread.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "a2a/types.h"
#include "transport/shm/loans.h"

namespace a2a::shm {
namespace {

// Counts the forks between the first process and this one. Only fork handlers write it.
std::atomic<uint64_t> generation{0};
Host* current = nullptr;  // guarded by making; never deleted
std::mutex making;

void before_fork() { making.lock(); }
void in_parent() { making.unlock(); }

}  // namespace

void let_go_in_child() {
  if (current != nullptr && !current->inherited()) {
    current->arena_.become_private();
    for (const auto& [fd, file] : current->guarded_) {
      if (file.is(fd)) ::close(fd);
    }
  }
  generation.fetch_add(1);
  making.unlock();
}

Host& Host::get() {
  std::lock_guard lock(making);
  static const int registered = pthread_atfork(before_fork, in_parent, let_go_in_child);
  if (registered != 0) throw Error(Code::backend, "pthread_atfork failed");
  if (current == nullptr || current->inherited()) current = new Host();
  return *current;
}

// In each communicator the chunks of a rank are a megabyte at most, or 32 KiB for each peer where that is more.
constexpr size_t kMostCommon = size_t{16} << 30;

Host::Host()
    : arena_("a2a"),
      common_("a2a-common", kMostCommon, kBellsBytes),
      loans_(new Loans(*this)),
      generation_(generation.load()) {
  for (uint32_t i = kBells; i > 0; --i) free_bells_.push_back(i - 1);
  if (::getrandom(&nonce_, sizeof(nonce_), 0) != sizeof(nonce_)) throw Error(Code::backend, "getrandom failed");
  for (const int fd : {arena_.fd(), common_.fd()}) guarded_.push_back({fd, FileIdentity(fd)});
}

bool Host::inherited() const { return generation_ != generation.load(std::memory_order_relaxed); }

void Host::refuse_if_inherited() const {
  if (!inherited()) return;
  throw Error(
      Code::aborted,
      "this communicator was made before fork(): it belongs to the parent process. Make a new one in the child");
}

uint32_t Host::take_bell() {
  std::lock_guard lock(mutex_);
  if (free_bells_.empty()) {
    throw Error(Code::backend, "more than " + std::to_string(kBells) + " ranks in one process");
  }
  const uint32_t index = free_bells_.back();
  common_.commit(index * sizeof(BellWord), sizeof(BellWord));
  free_bells_.pop_back();
  return index;
}

void Host::give_bell(uint32_t index) {
  std::lock_guard lock(mutex_);
  free_bells_.push_back(index);
}

void Host::guard(int fd) {
  std::lock_guard lock(making);
  guarded_.push_back({fd, FileIdentity(fd)});
}

void Host::unguard(int fd) {
  std::lock_guard lock(making);
  std::erase_if(guarded_, [fd](const Guarded& guarded) { return guarded.fd == fd; });
}

}  // namespace a2a::shm
