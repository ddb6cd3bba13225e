#include "core/record_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <system_error>

namespace a2a {
namespace {

// Keeps the SIGXFSZ of this thread's own writes from the program, for which it is deadly by default.
class HeldSizeSignal {
 public:
  HeldSizeSignal() noexcept {
    sigemptyset(&size_signal_);
    sigaddset(&size_signal_, SIGXFSZ);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    ::pthread_sigmask(SIG_BLOCK, &size_signal_, &before_);
  }
  ~HeldSizeSignal() {
    const timespec at_once{};
    while (!was_pending_ && ::sigtimedwait(&size_signal_, nullptr, &at_once) < 0 && errno == EINTR) continue;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  HeldSizeSignal(const HeldSizeSignal&) = delete;
  HeldSizeSignal& operator=(const HeldSizeSignal&) = delete;

 private:
  sigset_t size_signal_, before_;
  bool was_pending_;
};

}  // namespace

uint64_t wall_clock() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

std::string host_name() {
  char name[64] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::string record_name(Rank rank, int size, unsigned count, std::string_view suffix) {
  return "rank" + std::to_string(rank) + "-of-" + std::to_string(size) + "." + host_name() + "." +
         std::to_string(::getpid()) + "." + std::to_string(count) + "." + std::string(suffix);
}

Descriptor make_file(const std::string& path) {
  ::unlink(path.c_str());
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.open()) throw std::system_error(errno, std::generic_category(), path);
  return file;
}

int allocate(int fd, size_t bytes) {
  const HeldSizeSignal held;
  return ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
}

int write_at(int fd, const void* from, size_t bytes, size_t offset) {
  const HeldSizeSignal held;
  const auto* const begin = static_cast<const char*>(from);
  for (size_t done = 0; done < bytes;) {
    const ssize_t wrote = ::pwrite(fd, begin + done, bytes - done, static_cast<off_t>(offset + done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return wrote < 0 ? errno : ENOSPC;
    done += static_cast<size_t>(wrote);
  }
  return 0;
}

}  // namespace a2a
