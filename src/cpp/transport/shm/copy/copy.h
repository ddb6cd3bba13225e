// Copies bytes between lists of runs. A list of runs is one stream of bytes; the two sides may be cut differently.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstring>
#include <span>

#include "core/schedule.h"

namespace a2a::shm {

// A position in the byte stream of a list of runs.
struct Cursor {
  std::span<const Run> runs;
  size_t index = 0;   // of the run
  size_t offset = 0;  // bytes within that run

  bool at_end() const { return index == runs.size(); }
  bool has_gaps() const { return runs[index].strides != nullptr; }  // in this run
  std::byte* data() const { return runs[index].place(offset); }
  size_t contiguous() const { return runs[index].together(offset); }
  size_t left_of_run() const { return runs[index].bytes - offset; }
  // Requires bytes <= left_of_run().
  void advance(size_t bytes) {
    offset += bytes;
    if (offset == runs[index].bytes) {
      ++index;
      offset = 0;
    }
  }
};

// memcpy without slow cases. The C library copies larger pieces with `rep movsb`, which on some processors is slow for
// some distances between source and target (benchmarks/notes/learned.md). Stores::streaming keeps the target out of the
// caches, for targets that would not fit there.
enum class Stores : bool { cached, streaming };
void copy_bytes(std::byte* to, const std::byte* from, size_t bytes, Stores stores = Stores::cached);

// The offset in its page of memory that is copied from and to arrays. Large arrays begin at the start of a page, so no
// copy's target is just behind its source.
inline constexpr size_t kAside = 2048;

// Copies the next `bytes` bytes of the stream to contiguous memory, or from it.
void gather_runs(Cursor& from, std::byte* to, size_t bytes, Stores stores);
void scatter_runs(Cursor& to, const std::byte* from, size_t bytes, Stores stores);

inline bool is_short_run(const Cursor& at, size_t bytes) {
  constexpr size_t kShort = 1024;
  return bytes < kShort && !at.at_end() && bytes <= at.contiguous();
}

inline void gather(Cursor& from, std::byte* to, size_t bytes, Stores stores = Stores::cached) {
  if (!is_short_run(from, bytes)) return gather_runs(from, to, bytes, stores);
  std::memcpy(to, from.data(), bytes);
  from.advance(bytes);
}

inline void scatter(Cursor& to, const std::byte* from, size_t bytes, Stores stores = Stores::cached) {
  if (!is_short_run(to, bytes)) return scatter_runs(to, from, bytes, stores);
  std::memcpy(to.data(), from, bytes);
  to.advance(bytes);
}

// Copies at most `limit` bytes from one stream to the other, both in memory that this process can access. Returns how
// many.
size_t copy(Cursor& from, Cursor& to, size_t limit, Stores stores = Stores::cached);

// As copy(), with `from` in another process's memory. Returns how many bytes were copied, or -1 with errno: ESRCH when
// that process is gone, EFAULT when it has no memory at a run, EPERM when reading is not allowed.
ssize_t cma_copy(pid_t pid, Cursor& from, Cursor& to, size_t limit);

// As cma_copy(), by way of a buffer. For targets where process_vm_readv is slow, or has many short pieces to write: the
// kernel copies to a buffer at a favourable address, and a loop copies on from there. The second copy stays in the
// caches.
ssize_t cma_copy_by_way_of_buffer(pid_t pid, Cursor& from, Cursor& to, size_t limit);

// Whether this process may read from that one. Reads 8 bytes and compares them.
bool can_read(pid_t pid, const void* address, uint64_t expected);
// Whether this process may read the byte at that address.
bool can_read(pid_t pid, const void* address);

// Whether this process may read the rest of its own stream. Tries a byte of each page, without a signal.
bool can_be_read(Cursor from);

}  // namespace a2a::shm
