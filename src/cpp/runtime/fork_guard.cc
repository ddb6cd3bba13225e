#include "runtime/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "a2a/types.h"
#include "runtime/descriptor.h"

namespace a2a {
namespace {

// The number of forks between the first process and this one. Only fork handlers write it.
std::atomic<uint64_t> generation{0};
std::mutex held_at_fork;

struct Closed {
  int fd;
  FileIdentity file;
};

struct InChild {
  std::vector<Closed> closed;
  std::vector<void (*)()> called;
};

InChild& to_do_in_child() {
  static auto& one = *new InChild;
  return one;
}

void before_fork() { held_at_fork.lock(); }
void in_parent() { held_at_fork.unlock(); }
void in_child() {
  InChild& todo = to_do_in_child();
  for (const auto call : todo.called) call();
  for (const auto& [fd, file] : todo.closed) {
    if (file.is(fd)) ::close(fd);
  }
  todo.closed.clear();
  generation.fetch_add(1);
  held_at_fork.unlock();
}

void register_handlers() {
  static const int registered = pthread_atfork(before_fork, in_parent, in_child);
  if (registered != 0) throw Error(Code::backend, "pthread_atfork failed");
}

}  // namespace

ForkGuard::ForkGuard() {
  register_handlers();
  generation_ = generation.load();
}

bool ForkGuard::inherited() const { return generation_ != generation.load(std::memory_order_relaxed); }

void ForkGuard::refuse_if_inherited() const {
  if (!inherited()) return;
  throw Error(
      Code::aborted,
      "this communicator was made before fork(): it belongs to the parent process. Make a new one in the child");
}

std::mutex& fork_mutex() {
  register_handlers();
  return held_at_fork;
}

void close_in_child(int fd) {
  register_handlers();
  const std::lock_guard lock(held_at_fork);
  to_do_in_child().closed.push_back({fd, FileIdentity(fd)});
}

void keep_in_child(int fd) {
  const std::lock_guard lock(held_at_fork);
  std::erase_if(to_do_in_child().closed, [fd](const Closed& closed) { return closed.fd == fd; });
}

void call_in_child(void (*call)()) {
  register_handlers();
  const std::lock_guard lock(held_at_fork);
  auto& called = to_do_in_child().called;
  if (std::ranges::find(called, call) == called.end()) called.push_back(call);
}

}  // namespace a2a
