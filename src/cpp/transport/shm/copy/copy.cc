#include "transport/shm/copy/copy.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "runtime/descriptor.h"
#include "transport/shm/copy/calibration.h"

namespace a2a::shm {
namespace {

constexpr size_t kMaxPieces = 64;  // per system call; the kernel allows 1024

// Fills in the next pieces of a stream for the system call, up to `limit` bytes. Returns their number.
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
    const size_t step = std::min(bytes, at.left_of_run());
    at.advance(step);
    bytes -= step;
  }
}

// Whether the target is just behind the source within its page, as in adjacent arrays in one block of malloc(). On some
// processors the kernel's copy is slowest there.
bool stands_just_behind(const std::byte* to, const std::byte* from) {
  const auto distance = reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from);
  return distance % 4096 > 0 && distance % 4096 < 64;
}

#if defined(__x86_64__)
// The loops require a target aligned to 64 bytes and a multiple of kBlock bytes.
constexpr size_t kBlock = 128;

__attribute__((target("avx2"))) void copy_blocks_avx2(std::byte* to, const std::byte* from, size_t bytes, bool stream) {
  for (size_t i = 0; i < bytes; i += 128) {
    const auto* in = reinterpret_cast<const __m256i*>(from + i);
    auto* out = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_loadu_si256(in), b = _mm256_loadu_si256(in + 1);
    const __m256i c = _mm256_loadu_si256(in + 2), d = _mm256_loadu_si256(in + 3);
    if (stream) {
      _mm256_stream_si256(out, a), _mm256_stream_si256(out + 1, b);
      _mm256_stream_si256(out + 2, c), _mm256_stream_si256(out + 3, d);
    } else {
      _mm256_store_si256(out, a), _mm256_store_si256(out + 1, b);
      _mm256_store_si256(out + 2, c), _mm256_store_si256(out + 3, d);
    }
  }
}

void copy_blocks_sse2(std::byte* to, const std::byte* from, size_t bytes, bool stream) {
  for (size_t i = 0; i < bytes; i += 64) {
    const auto* in = reinterpret_cast<const __m128i*>(from + i);
    auto* out = reinterpret_cast<__m128i*>(to + i);
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    if (stream) {
      _mm_stream_si128(out, a), _mm_stream_si128(out + 1, b), _mm_stream_si128(out + 2, c),
          _mm_stream_si128(out + 3, d);
    } else {
      _mm_store_si128(out, a), _mm_store_si128(out + 1, b), _mm_store_si128(out + 2, c), _mm_store_si128(out + 3, d);
    }
  }
}

const auto copy_blocks = __builtin_cpu_supports("avx2") ? copy_blocks_avx2 : copy_blocks_sse2;
#endif

// A copy in progress.
struct Copying {
  std::byte* to;
  const std::byte* from;
  size_t left;

  void plain(size_t bytes) {
    std::memcpy(to, from, bytes);
    pass(bytes);
  }
#if defined(__x86_64__)
  void align() { plain(std::min(left, -reinterpret_cast<uintptr_t>(to) % 64)); }
  void blocks(size_t bytes, Stores stores) {
    copy_blocks(to, from, bytes, stores == Stores::streaming);
    pass(bytes);
  }
#endif
  void pass(size_t bytes) {
    to += bytes;
    from += bytes;
    left -= bytes;
  }
};

#if defined(__x86_64__)
void copy_by_loop(std::byte* to, const std::byte* from, size_t bytes, Stores stores) {
  Copying copying{to, from, bytes};
  copying.align();
  copying.blocks(copying.left / kBlock * kBlock, stores);
  if (stores == Stores::streaming) _mm_sfence();
  copying.plain(copying.left);
}
#endif

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes, Stores stores) {
#if defined(__x86_64__)
  constexpr size_t kLeastLoop = 1024;  // below, the C library is as fast
  if (bytes >= kLeastLoop) return copy_by_loop(to, from, bytes, stores);
#else
  (void)stores;
#endif
  std::memcpy(to, from, bytes);
}

void gather_runs(Cursor& from, std::byte* to, size_t bytes, Stores stores) {
  while (bytes > 0) {
    const size_t step = std::min(bytes, from.left_of_run());
    if (from.has_gaps()) {
      a2a::gather(from.runs[from.index], from.offset, step, to);
    } else {
      copy_bytes(to, from.data(), step, stores);
    }
    from.advance(step);
    to += step;
    bytes -= step;
  }
}

void scatter_runs(Cursor& to, const std::byte* from, size_t bytes, Stores stores) {
  while (bytes > 0) {
    const size_t step = std::min(bytes, to.left_of_run());
    if (to.has_gaps()) {
      a2a::scatter(to.runs[to.index], to.offset, step, from);
    } else {
      copy_bytes(to.data(), from, step, stores);
    }
    to.advance(step);
    from += step;
    bytes -= step;
  }
}

namespace {

// Copies the next bytes of a stream, at most `limit`, where one of the two runs has gaps. Returns how many.
size_t copy_with_gaps(Cursor& from, Cursor& to, size_t limit) {
  constexpr size_t kShort = 512;                   // packing is faster than copying shorter pieces one by one
  alignas(64) std::byte packed[size_t{16} << 10];  // stays in the first-level cache
  const size_t pieces = std::min(from.contiguous(), to.contiguous());
  size_t step = std::min({from.left_of_run(), to.left_of_run(), limit});
  if (pieces >= std::min(kShort, step)) {
    step = std::min(step, pieces);
    copy_bytes(to.data(), from.data(), step);
  } else if (!to.has_gaps()) {
    a2a::gather(from.runs[from.index], from.offset, step, to.data());
  } else if (!from.has_gaps()) {
    a2a::scatter(to.runs[to.index], to.offset, step, from.data());
  } else {
    step = std::min(step, sizeof packed);
    a2a::gather(from.runs[from.index], from.offset, step, packed);
    a2a::scatter(to.runs[to.index], to.offset, step, packed);
  }
  from.advance(step);
  to.advance(step);
  return step;
}

}  // namespace

size_t copy(Cursor& from, Cursor& to, size_t limit, Stores stores) {
  size_t copied = 0;
  while (copied < limit && !from.at_end() && !to.at_end()) {
    if (from.has_gaps() || to.has_gaps()) {
      copied += copy_with_gaps(from, to, limit - copied);
      continue;
    }
    const size_t step = std::min({from.contiguous(), to.contiguous(), limit - copied});
    copy_bytes(to.data(), from.data(), step, stores);
    from.advance(step);
    to.advance(step);
    copied += step;
  }
  return copied;
}

namespace {

// The kernel's work for a piece exceeds the copy of a short one.
bool is_in_short_pieces(const Cursor& to) { return to.has_gaps() && to.contiguous() < 4096; }

bool stumbles(const Cursor& from, const Cursor& to) {
  return stands_just_behind(to.data(), from.data()) && cma_stumbles();
}

}  // namespace

ssize_t cma_copy_by_way_of_buffer(pid_t pid, Cursor& from, Cursor& to, size_t limit) {
  constexpr size_t kBytes = size_t{128} << 10;  // stays in the second-level cache
  thread_local const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kBytes + 4096);
  const auto misplaced = reinterpret_cast<uintptr_t>(from.data()) - reinterpret_cast<uintptr_t>(buffer.get());
  iovec local{buffer.get() + misplaced % 4096, std::min({kBytes, limit, from.contiguous()})};
  iovec remote{from.data(), local.iov_len};
  const ssize_t copied = ::process_vm_readv(pid, &local, 1, &remote, 1, 0);
  if (copied > 0) {
    scatter(to, static_cast<const std::byte*>(local.iov_base), static_cast<size_t>(copied));
    skip(from, static_cast<size_t>(copied));
  }
  return copied;
}

ssize_t cma_copy(pid_t pid, Cursor& from, Cursor& to, size_t limit) {
  if (is_in_short_pieces(to) || stumbles(from, to)) return cma_copy_by_way_of_buffer(pid, from, to, limit);
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

namespace {

template <class Value>
bool read_from(pid_t pid, const void* address, Value* value) {
  iovec local{value, sizeof(Value)};
  iovec remote{const_cast<void*>(address), sizeof(Value)};
  return pid > 0 && ::process_vm_readv(pid, &local, 1, &remote, 1, 0) == sizeof(Value);
}

}  // namespace

bool can_read(pid_t pid, const void* address, uint64_t expected) {
  uint64_t value = 0;
  return read_from(pid, address, &value) && value == expected;
}

bool can_read(pid_t pid, const void* address) {
  std::byte value{};
  return read_from(pid, address, &value);
}

bool can_be_read(Cursor from) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const Descriptor sink(::memfd_create("a2a-sink", MFD_CLOEXEC));
  while (sink.fd() >= 0 && !from.at_end()) {
    iovec bytes[kMaxPieces];
    int count = 0;
    for (; count < static_cast<int>(kMaxPieces) && !from.at_end(); ++count) {
      bytes[count] = {from.data(), 1};
      const size_t to_next_page = page - reinterpret_cast<uintptr_t>(from.data()) % page;
      from.advance(std::min(to_next_page, from.contiguous()));
    }
    const ssize_t written = ::pwritev(sink.fd(), bytes, count, 0);
    if (written < count && (written >= 0 || errno == EFAULT)) return false;
  }
  return true;
}

}  // namespace a2a::shm
