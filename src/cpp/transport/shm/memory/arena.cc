#include "transport/shm/memory/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <fstream>
#include <new>
#include <string>
#include <utility>

#include "a2a/types.h"
#include "runtime/environment.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older headers do not have it
#endif

namespace a2a::shm {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kSmallestSegment = size_t{16} << 20;
constexpr size_t kReturnToSystem = size_t{1} << 20;  // freed blocks from this size on give their pages back

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Returns the limit on file sizes. Beyond it ftruncate() raises SIGXFSZ.
size_t file_size_limit() {
  rlimit limit{};
  const bool limited = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return limited ? limit.rlim_cur : SIZE_MAX;
}

// Returns how much memory this process can share at most: that of the machine, its control group and its file size
// limit.
size_t memory_limit() {
  auto limit = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * kPage;
  std::ifstream file("/sys/fs/cgroup/memory.max");
  if (size_t allowed = 0; file >> allowed) limit = std::min(limit, allowed);
  return std::min(limit, file_size_limit());
}

size_t wanted_segment() {
  const size_t limit = file_size_limit();
  if (limit < kSmallestSegment) {
    throw Error(Code::backend, "shared memory: the limit on file sizes (ulimit -f) is " + std::to_string(limit) +
                                   " bytes; at least 16777216 are needed");
  }
  constexpr size_t kMost = size_t{1} << 46;  // a quarter of what a process can address
  const auto bytes = bytes_variable("A2A_SHM_SEGMENT", kSmallestSegment, kMost);
  if (!bytes) return std::max(memory_limit() / kPage * kPage, kSmallestSegment);
  if (round_up(*bytes, kPage) > limit) {
    throw Error(Code::invalid_argument, "A2A_SHM_SEGMENT = " + std::to_string(*bytes) +
                                            " is more than the limit on file sizes (ulimit -f), " +
                                            std::to_string(limit) + " bytes");
  }
  return round_up(*bytes, kPage);
}

// Gives the pages back to the system; they read as zero afterwards. Returns false where the program has locked its
// memory.
bool give_back(std::byte* data, size_t bytes) noexcept { return ::madvise(data, bytes, MADV_REMOVE) == 0; }

}  // namespace

Arena::Arena(const char* name, size_t most, size_t reserved) {
  for (size_t bytes = std::min(wanted_segment(), most);; bytes = bytes / 2 / kPage * kPage) {
    try {
      Descriptor fd = sealed_memfd(name, bytes);
      mapping_ = Mapping(fd.fd(), bytes, true);
      fd_ = std::move(fd);
      break;
    } catch (const Error&) {
      if (bytes / 2 < kSmallestSegment) throw;
    }
  }
  free_[reserved] = mapping_.bytes() - reserved;
}

int Arena::fd() const {
  const int fd = fd_.if_ours();
  if (fd < 0) {
    throw Error(Code::backend, "shared memory: the program has closed file descriptor " + std::to_string(fd_.fd()) +
                                   ", which a2a had opened to show its memory to other ranks");
  }
  return fd;
}

size_t Arena::take(size_t bytes, size_t alignment) {
  for (auto& [offset, available] : free_) {
    const size_t start = round_up(offset, alignment);
    const size_t skipped = start - offset;
    if (skipped > available || available - skipped < bytes) continue;
    const size_t rest = available - skipped - bytes;
    const auto block = used_.emplace(start, Allocation{bytes}).first;
    try {
      if (rest > 0) free_.emplace(start + bytes, rest);
    } catch (const std::bad_alloc&) {
      used_.erase(block);
      throw;
    }
    if (skipped > 0) {
      available = skipped;
    } else {
      free_.erase(offset);
    }
    return start;
  }
  throw Error(Code::backend, "shared memory: no room for " + std::to_string(bytes) + " bytes in a segment of " +
                                 std::to_string(mapping_.bytes()));
}

void Arena::give(size_t offset, size_t bytes) noexcept try {
  auto [at, inserted] = free_.emplace(offset, bytes);
  if (auto next = std::next(at); next != free_.end() && at->first + at->second == next->first) {
    at->second += next->second;
    free_.erase(next);
  }
  if (at != free_.begin()) {
    if (auto before = std::prev(at); before->first + before->second == at->first) {
      before->second += at->second;
      free_.erase(at);
    }
  }
} catch (const std::bad_alloc&) {  // no memory to note it: this room is not used again
}

void Arena::commit(size_t offset, size_t bytes) {
  const size_t first = offset / kPage * kPage, room = round_up(offset + bytes, kPage) - first;
  int error = mapping_.reach(first + room) ? 0 : errno;
  while (error == 0 && ::madvise(base() + first, room, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR) continue;
    // Linux before 5.14 has no MADV_POPULATE_WRITE; posix_fallocate() commits the file's pages instead.
    error = errno == EINVAL ? ::posix_fallocate(fd(), static_cast<off_t>(first), static_cast<off_t>(room)) : errno;
    if (error == EINTR)
      error = 0;
    else
      break;
  }
  if (error == 0) return;
  errno = error == EFAULT ? ENOMEM : error;  // EFAULT: an access would have been SIGBUS
  throw_errno("no memory for " + std::to_string(bytes) + " bytes");
}

std::byte* Arena::allocate(size_t bytes) {
  const size_t room = round_up(std::max<size_t>(bytes, 1), bytes >= kPage ? kPage : 64);
  if (room < bytes) throw Error(Code::backend, "shared memory: no room for " + std::to_string(bytes) + " bytes");
  size_t offset = 0;
  {
    std::lock_guard lock(mutex_);
    offset = take(room, bytes >= kPage ? kPage : 64);
  }
  std::byte* data = base() + offset;
  try {
    // A new block is zeroed. Large blocks get fresh pages, others are overwritten.
    const bool zeroed = room >= kReturnToSystem && mapping_.reach(offset + room) && give_back(data, room);
    commit(offset, room);
    if (!zeroed) std::memset(data, 0, room);
  } catch (const std::exception&) {
    release(data);
    throw;
  }
  return data;
}

void Arena::release(std::byte* data) noexcept {
  std::lock_guard lock(mutex_);
  const auto block = used_.find(offset(data));
  block->second.released = true;
  if (block->second.pins == 0) free_block(block);
}

void Arena::free_block(std::map<size_t, Allocation>::iterator block) noexcept {
  const size_t start = block->first, bytes = block->second.bytes;
  used_.erase(block);
  if (bytes >= kReturnToSystem) give_back(base() + start, bytes);
  give(start, bytes);
}

std::byte* Arena::pin(const std::byte* data, size_t bytes) {
  if (!contains(data, bytes)) return nullptr;
  std::lock_guard lock(mutex_);
  auto block = used_.upper_bound(offset(data));
  if (block == used_.begin()) return nullptr;
  --block;
  const size_t skipped = offset(data) - block->first;
  if (block->second.released || skipped >= block->second.bytes || block->second.bytes - skipped < bytes) return nullptr;
  ++block->second.pins;
  return base() + block->first;
}

void Arena::unpin(std::byte* block) noexcept {
  std::lock_guard lock(mutex_);
  const auto at = used_.find(offset(block));
  if (--at->second.pins == 0 && at->second.released) free_block(at);
}

size_t Arena::allocated() const {
  std::lock_guard lock(mutex_);
  size_t total = 0;
  for (const auto& [offset, block] : used_) total += block.bytes;
  return total;
}

}  // namespace a2a::shm
