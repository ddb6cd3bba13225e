#include "transport/shm/memory/mapping.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "a2a/types.h"

namespace a2a::shm {
namespace {

constexpr size_t kStep = size_t{1} << 20;  // granularity of reach(): gradual use needs few system calls

// Returns why an access to a mapping of `fd` could raise SIGBUS, or nullptr. The pool of huge pages may be empty, and
// other kinds of file can be truncated by their owner or a server.
const char* flaw_of(int fd, size_t bytes) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  struct stat status{};
  struct statfs system{};
  if (::fstat(fd, &status) != 0 || ::fstatfs(fd, &system) != 0) return "nothing that can be looked at";
  if (!S_ISREG(status.st_mode) || system.f_type != TMPFS_MAGIC) return "a file that is no memfd of ordinary memory";
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return "a memfd that is not sealed";
  return std::cmp_equal(status.st_size, bytes) ? nullptr : "a memfd that has not the size it said";
}

}  // namespace

void throw_errno(const std::string& what) {
  throw Error(Code::backend, "shared memory: " + what + ": " + std::strerror(errno));
}

Mapping::Mapping(int fd, size_t bytes, bool writable)
    : bytes_(bytes), protection_(writable ? PROT_READ | PROT_WRITE : PROT_READ) {
  void* base = ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED)
    throw_errno("cannot map " + std::to_string(bytes) + " bytes (see ulimit -v, and -l with mlockall)");
  base_ = static_cast<std::byte*>(base);
  ::madvise(base, bytes, MADV_DONTDUMP);  // a core file need not hold every peer's memory
}

Mapping::Mapping(Mapping&& other) noexcept { *this = std::move(other); }

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  open_.store(other.open_.exchange(open()));
  std::swap(protection_, other.protection_);
  return *this;
}

bool Mapping::reach(size_t end) noexcept {
  size_t before = open();
  if (end <= before) return true;
  if (end > bytes_) return false;
  const size_t after = bytes_ - end < kStep ? bytes_ : (end + kStep - 1) / kStep * kStep;
  if (::mprotect(base_ + before, after - before, protection_) != 0) return false;
  while (before < after && !open_.compare_exchange_weak(before, after, std::memory_order_relaxed)) {
  }
  return true;
}

void Mapping::become_private(int fd) noexcept {
  constexpr int kHow = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
  if (open() == 0) return;
  if (fd >= 0 && ::mmap(base_, open(), protection_, kHow, fd, 0) != MAP_FAILED) return;
  ::mprotect(base_, open(), PROT_READ);
}

Mapping::~Mapping() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

Descriptor sealed_memfd(const char* name, size_t bytes) {
  Descriptor fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.fd() < 0) throw_errno("memfd_create");
  if (::ftruncate(fd.fd(), static_cast<off_t>(bytes)) != 0)
    throw_errno("cannot size " + std::to_string(bytes) + " bytes");
  if (::fcntl(fd.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) throw_errno("cannot seal");
  return fd;
}

Mapping map_peer(int fd, size_t bytes, bool writable) {
  if (const char* const flaw = flaw_of(fd, bytes)) {
    throw Error(Code::backend, std::string("shared memory: a peer offered ") + flaw);
  }
  return Mapping(fd, bytes, writable);
}

}  // namespace a2a::shm
