#include "transport/shm/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "a2a/types.h"

namespace a2a::shm {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kSmallestSegment = size_t{16} << 20;
constexpr size_t kReturnToSystem = size_t{1} << 20;  // freed blocks from this size on give their pages back

[[noreturn]] void fail(const std::string& what) {
  throw Error(Code::backend, "shared memory: " + what + ": " + std::strerror(errno));
}

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// The most memory this process could ever share: what the machine has, or its control group allows.
size_t memory_limit() {
  auto limit = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * kPage;
  std::ifstream file("/sys/fs/cgroup/memory.max");
  if (size_t allowed = 0; file >> allowed) limit = std::min(limit, allowed);
  rlimit file_size{};
  if (getrlimit(RLIMIT_FSIZE, &file_size) == 0 && file_size.rlim_cur != RLIM_INFINITY) {
    if (file_size.rlim_cur < kSmallestSegment) {  // beyond it ftruncate would raise SIGXFSZ
      throw Error(Code::backend, "shared memory: the limit on file sizes (ulimit -f) is " +
                                     std::to_string(file_size.rlim_cur) + " bytes; at least 16777216 are needed");
    }
    limit = std::min<size_t>(limit, file_size.rlim_cur);
  }
  return limit;
}

size_t wanted_segment() {
  if (const char* text = std::getenv("A2A_SHM_SEGMENT")) {
    char* end = nullptr;
    const unsigned long long bytes = std::strtoull(text, &end, 10);
    if (end == text || *end != '\0' || bytes < kSmallestSegment) {
      throw Error(Code::invalid_argument,
                  std::string("A2A_SHM_SEGMENT = '") + text + "' is not a number of bytes of at least 16777216");
    }
    return round_up(bytes, kPage);
  }
  return std::max(memory_limit() / kPage * kPage, kSmallestSegment);
}

// Gives the pages back to the system; they read as zero afterwards.
void punch(int fd, size_t offset, size_t bytes) {
  ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes));
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void Fd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Mapping::Mapping(int fd, size_t bytes, bool writable) : bytes_(bytes) {
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* base = ::mmap(nullptr, bytes, protection, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED) fail("cannot map " + std::to_string(bytes) + " bytes (see ulimit -v)");
  base_ = static_cast<std::byte*>(base);
  ::madvise(base, bytes, MADV_DONTDUMP);  // a core file need not hold every peer's memory
}

Mapping::Mapping(Mapping&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping Mapping::writable_twin() const {
  Mapping twin;
  // Of a shared mapping mremap() makes another one if it is told that the old one has no bytes.
  void* base = ::mremap(base_, 0, bytes_, MREMAP_MAYMOVE);
  if (base == MAP_FAILED) return twin;
  twin.base_ = static_cast<std::byte*>(base);
  twin.bytes_ = bytes_;
  if (::mprotect(base, bytes_, PROT_READ | PROT_WRITE) != 0) return {};
  return twin;
}

Mapping::~Mapping() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

Fd sealed_memfd(const char* name, size_t bytes) {
  Fd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) fail("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) fail("cannot size " + std::to_string(bytes) + " bytes");
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) fail("cannot seal");
  return fd;
}

Mapping map_peer(int fd, size_t bytes, bool writable) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  struct stat status{};
  if ((::fcntl(fd, F_GET_SEALS) & kSeals) != kSeals || ::fstat(fd, &status) != 0 ||
      static_cast<size_t>(status.st_size) != bytes) {
    throw Error(Code::backend, "shared memory: a peer offered a segment that is not sealed or not of the size it said");
  }
  return Mapping(fd, bytes, writable);
}

Arena::Arena(const char* name, size_t most, size_t reserved) {
  for (size_t bytes = std::min(wanted_segment(), most);; bytes = bytes / 2 / kPage * kPage) {
    try {
      Fd fd = sealed_memfd(name, bytes);
      mapping_ = Mapping(fd.get(), bytes, true);
      fd_ = std::move(fd);
      break;
    } catch (const Error&) {
      if (bytes / 2 < kSmallestSegment) throw;
    }
  }
  free_[reserved] = mapping_.bytes() - reserved;
}

size_t Arena::take(size_t bytes, size_t alignment) {
  for (auto& [offset, available] : free_) {
    const size_t start = round_up(offset, alignment);
    const size_t skipped = start - offset;
    if (skipped > available || available - skipped < bytes) continue;
    const size_t hole = offset, hole_bytes = available;
    free_.erase(hole);
    if (skipped > 0) free_[hole] = skipped;
    if (hole_bytes - skipped > bytes) free_[start + bytes] = hole_bytes - skipped - bytes;
    used_[start] = {bytes};
    return start;
  }
  throw Error(Code::backend, "shared memory: no room for " + std::to_string(bytes) + " bytes in a segment of " +
                                 std::to_string(mapping_.bytes()));
}

void Arena::give(size_t offset, size_t bytes) noexcept {
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
  const bool large = room >= kReturnToSystem;
  if (large) punch(fd(), offset, room);  // zeroes what smaller blocks left here
  int error = 0;
  do {
    error = ::posix_fallocate(fd(), static_cast<off_t>(offset), static_cast<off_t>(room));
  } while (error == EINTR);
  if (error != 0) {
    release(data);
    errno = error;
    fail("no memory for " + std::to_string(bytes) + " bytes");
  }
  if (!large) std::memset(data, 0, room);
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
  if (bytes >= kReturnToSystem) punch(fd(), start, bytes);
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
