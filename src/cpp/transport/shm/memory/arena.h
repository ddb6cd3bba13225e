// Shared memory of one process: a sealed memfd of its own, and an allocator over it. The memory is managed through its
// mapping: the descriptor only serves to show it to peers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "transport/shm/memory/mapping.h"

namespace a2a::shm {

// A segment of this process. Sparse: as large as the machine's memory, or as it may become at most, but only allocated
// parts exist. All of its memory is committed when it is allocated, so that running out is an error here and not a
// signal later. Thread-safe.
class Arena {
 public:
  // The first `reserved` bytes, a multiple of the page, are never allocated, and exist once they were committed.
  explicit Arena(const char* name, size_t most = SIZE_MAX, size_t reserved = 0);

  // 64-byte aligned (page-aligned from a page on), zeroed. Throws Error(backend) when there is not enough memory.
  std::byte* allocate(size_t bytes);
  void release(std::byte* data) noexcept;

  // Keeps the allocated block in which all of these bytes lie from being used again, also once it is released, until
  // it is unpinned as often. Returns its start, or nullptr when there is no such block.
  std::byte* pin(const std::byte* data, size_t bytes);
  void unpin(std::byte* block) noexcept;

  // Makes these bytes exist. Throws Error(backend) when there is not enough memory.
  void commit(size_t offset, size_t bytes);

  // For the peers. Throws Error(backend) where the program has closed it.
  int fd() const;
  // In a forked child: what it writes to arrays that it has inherited reaches neither its parent nor peers.
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
    bool released = false;  // as soon as nobody pins it
  };
  size_t take(size_t bytes, size_t alignment);
  void give(size_t offset, size_t bytes) noexcept;
  void free_block(std::map<size_t, Allocation>::iterator block) noexcept;

  Descriptor fd_;
  Mapping mapping_;
  mutable std::mutex mutex_;
  std::map<size_t, size_t> free_;      // offset -> bytes; neighbours are merged
  std::map<size_t, Allocation> used_;  // by offset
};

}  // namespace a2a::shm
