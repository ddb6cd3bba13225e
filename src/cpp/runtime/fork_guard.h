// What fork() leaves behind: the child has copies of everything, and none of it is its own.
#pragma once

#include <cstdint>
#include <mutex>

namespace a2a {

// Tells whether the process is the one in which this object was made.
class ForkGuard {
 public:
  ForkGuard();

  // Whether this object was inherited from the parent process. Nothing shared may be written then.
  bool inherited() const;
  // Throws Error(aborted) then.
  void refuse_if_inherited() const;

 private:
  uint64_t generation_;
};

// Held while the process forks, so that the child finds what it guards complete.
std::mutex& fork_mutex();

// Descriptors that a forked child closes, so that it does not hold back the news of its parent's death; those that the
// program has closed are its own business. Until keep_in_child(), which comes before the descriptor is closed.
void close_in_child(int fd);
void keep_in_child(int fd);

// Has every forked child call this, before it closes these descriptors, with fork_mutex() held. For ever.
void call_in_child(void (*call)());

}  // namespace a2a
