// Guards against fork(): the child has copies of all objects, and owns none of them.
#pragma once

#include <cstdint>
#include <mutex>

namespace a2a {

// Tells whether the process is the one in which this object was made.
class ForkGuard {
 public:
  ForkGuard();

  // Whether this object was inherited from the parent process. Then nothing shared may be written.
  bool inherited() const;
  // Throws Error(aborted) if it was inherited.
  void refuse_if_inherited() const;

 private:
  uint64_t generation_;
};

// Returns the mutex that is held while the process forks, so that the child finds the state it guards complete.
std::mutex& fork_mutex();

// close_in_child() makes forked children close a descriptor, because an open copy would hide the death of the parent. A
// descriptor that the program has closed is left alone. keep_in_child() ends that; call it before the descriptor is
// closed.
void close_in_child(int fd);
void keep_in_child(int fd);

// Makes every forked child call this, before it closes these descriptors, with fork_mutex() held. It cannot be undone.
void call_in_child(void (*call)());

}  // namespace a2a
