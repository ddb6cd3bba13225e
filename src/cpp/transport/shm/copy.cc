#include "transport/shm/copy.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace a2a::shm {
namespace {

constexpr size_t kMaxPieces = 64;  // per system call; the kernel allows 1024

// The next pieces of a stream as the system call wants them, up to `limit` bytes. Returns how many pieces.
size_t pieces(Cursor at, size_t limit, iovec* out) {
  size_t count = 0;
  for (; count < kMaxPieces && limit > 0 && !at.at_end(); ++count) {
    const size_t bytes = std::min(at.contiguous(), limit);
    out[count] = {at.data(), bytes};
    limit -= bytes;
    at.advance(bytes);
  }
  return count;
}

void skip(Cursor& at, size_t bytes) {
  while (bytes > 0) {
    const size_t step = std::min(bytes, at.contiguous());
    at.advance(step);
    bytes -= step;
  }
}

}  // namespace

void gather(Cursor& from, std::byte* to, size_t bytes) {
  while (bytes > 0) {
    const size_t step = std::min(bytes, from.contiguous());
    std::memcpy(to, from.data(), step);
    from.advance(step);
    to += step;
    bytes -= step;
  }
}

void scatter(Cursor& to, const std::byte* from, size_t bytes) {
  while (bytes > 0) {
    const size_t step = std::min(bytes, to.contiguous());
    std::memcpy(to.data(), from, step);
    to.advance(step);
    from += step;
    bytes -= step;
  }
}

size_t copy(Cursor& from, Cursor& to, size_t limit) {
  size_t copied = 0;
  while (copied < limit && !from.at_end() && !to.at_end()) {
    const size_t step = std::min({from.contiguous(), to.contiguous(), limit - copied});
    std::memcpy(to.data(), from.data(), step);
    from.advance(step);
    to.advance(step);
    copied += step;
  }
  return copied;
}

ssize_t copy_from_process(pid_t pid, Cursor& from, Cursor& to, size_t limit) {
  iovec local[kMaxPieces], remote[kMaxPieces];
  const size_t local_count = pieces(to, limit, local);
  const size_t remote_count = pieces(from, limit, remote);
  const ssize_t copied = ::process_vm_readv(pid, local, local_count, remote, remote_count, 0);
  if (copied > 0) {
    skip(to, static_cast<size_t>(copied));
    skip(from, static_cast<size_t>(copied));
  }
  return copied;
}

bool can_read(pid_t pid, const void* address, uint64_t expected) {
  uint64_t value = 0;
  iovec local{&value, sizeof(value)};
  iovec remote{const_cast<void*>(address), sizeof(value)};
  return pid > 0 && ::process_vm_readv(pid, &local, 1, &remote, 1, 0) == sizeof(value) && value == expected;
}

}  // namespace a2a::shm
