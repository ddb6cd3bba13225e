// Memory that processes share: sealed memfds, and where they are mapped.
#pragma once

#include <atomic>
#include <cstddef>

#include "runtime/descriptor.h"

namespace a2a::shm {

// A mapping that unmaps itself. Of a segment that is as large as it may ever become, only the beginning is accessible,
// as far as somebody has asked for: mlockall() commits all memory that can be accessed, of this process or of a peer.
class Mapping {
 public:
  Mapping() = default;
  // Throws Error(backend).
  Mapping(int fd, size_t bytes, bool writable);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }

  // The same memory at another address, writable whether this mapping is or not. Empty where there is no room for it.
  Mapping writable_twin() const;

  // How many bytes from its beginning can be accessed.
  size_t open() const { return open_.load(std::memory_order_relaxed); }
  // Makes that so of the first `end` bytes. False where there are not so many, or the kernel refuses. Thread-safe, but
  // for a twin.
  bool reach(size_t end) noexcept;

  // In a forked child: what it writes reaches nobody any more. Without the memfd, `fd`, it cannot write.
  void become_private(int fd) noexcept;

 private:
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  std::atomic<size_t> open_{0};
  int protection_ = 0;
  const std::byte* twin_of_ = nullptr;
};

// A memfd that can neither shrink nor grow any more, so that no peer can make another's access fail with SIGBUS.
Descriptor sealed_memfd(const char* name, size_t bytes);

// Maps a peer's memfd. Throws Error(backend) unless it is one of ordinary memory, is sealed, and has exactly this size:
// with anything else, the peer or the kernel could make an access fail with SIGBUS.
Mapping map_peer(int fd, size_t bytes, bool writable);

}  // namespace a2a::shm
