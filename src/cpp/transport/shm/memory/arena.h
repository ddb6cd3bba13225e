// Shared memory of one process: a sealed memfd, and an allocator over its mapping. The descriptor only serves to pass
// the memory to peers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "transport/shm/memory/mapping.h"

namespace a2a::shm {

// A segment of this process. It reserves address space for all of the machine's memory, or for `most` bytes; only
// allocated parts have pages. allocate() commits them, so lack of memory is an error there and no SIGBUS later.
// Thread-safe.
class Arena {
 public:
  // The first `reserved` bytes, a multiple of the page size, are never allocated; commit() makes them accessible.
  explicit Arena(const char* name, size_t most = SIZE_MAX, size_t reserved = 0);

  // Returns zeroed memory, aligned to 64 bytes, or to a page if it has at least a page. Throws Error(backend) when
  // memory runs out.
  std::byte* allocate(size_t bytes);
  void release(std::byte* data) noexcept;

  // Pins the allocated block that holds all of these bytes: until as many unpin() calls it is not used again, even if
  // it is released. Returns the block's start, or nullptr where no block holds them.
  std::byte* pin(const std::byte* data, size_t bytes);
  void unpin(std::byte* block) noexcept;

  // Commits these bytes. Throws Error(backend) when memory runs out.
  void commit(size_t offset, size_t bytes);

  // Returns the descriptor to pass to peers. Throws Error(backend) where the program has closed it.
  int fd() const;
  // Call in a forked child: its writes to inherited arrays then reach neither its parent nor peers.
  void become_private() noexcept { mapping_.become_private(fd_.if_ours()); }

  Mapping& mapping() { return mapping_; }
  std::byte* base() const { return mapping_.base(); }
  size_t bytes() const { return mapping_.bytes(); }
  uint64_t offset(const std::byte* data) const { return static_cast<uint64_t>(data - mapping_.base()); }
  // Whether all of these bytes are in this segment.
  bool contains(const std::byte* data, size_t bytes) const {
    return data >= base() && data <= base() + this->bytes() &&
           bytes <= static_cast<size_t>(base() + this->bytes() - data);
  }
  size_t allocated() const;  // bytes, for tests of leaks

 private:
  struct Allocation {
    size_t bytes = 0;
    unsigned pins = 0;
    bool released = false;  // free_block() runs when the last pin goes
  };
  size_t take(size_t bytes, size_t alignment);
  void give(size_t offset, size_t bytes) noexcept;
  void free_block(std::map<size_t, Allocation>::iterator block) noexcept;

  Descriptor fd_;
  Mapping mapping_;
  mutable std::mutex mutex_;
  std::map<size_t, size_t> free_;      // offset -> bytes; adjacent blocks are merged
  std::map<size_t, Allocation> used_;  // by offset
};

}  // namespace a2a::shm
