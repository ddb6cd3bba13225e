// Sealed memfds that processes share, and their mappings.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

#include "runtime/descriptor.h"

namespace a2a::shm {

// Throws Error(backend) with `what` and what errno says.
[[noreturn]] void throw_errno(const std::string& what);

// Owns a mapping. Only the beginning is accessible, as far as reach() was asked for: mlockall() commits all accessible
// memory, of this process or of a peer, and a segment is mapped at its largest possible size.
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

  // The number of accessible bytes, from the beginning.
  size_t open() const { return open_.load(std::memory_order_relaxed); }
  // Makes the first `end` bytes accessible. Returns false when `end` exceeds bytes() or the kernel refuses.
  // Thread-safe.
  bool reach(size_t end) noexcept;

  // Call in a forked child: makes the mapping private. Without the memfd `fd` it becomes read-only.
  void become_private(int fd) noexcept;

 private:
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  std::atomic<size_t> open_{0};
  int protection_ = 0;
};

// Makes a memfd that can neither shrink nor grow, so that no peer's truncation turns an access into SIGBUS.
Descriptor sealed_memfd(const char* name, size_t bytes);

// Maps a peer's memfd. Throws Error(backend) unless it is a sealed memfd of ordinary memory with exactly this size:
// with anything else the peer or the kernel could turn an access into SIGBUS.
Mapping map_peer(int fd, size_t bytes, bool writable);

}  // namespace a2a::shm
