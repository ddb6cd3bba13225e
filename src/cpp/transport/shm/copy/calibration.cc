#include "transport/shm/copy/calibration.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "transport/shm/copy/copy.h"

namespace a2a::shm {
namespace {

constexpr size_t kMostCalibrated = size_t{1} << 20;
constexpr size_t kChunks = size_t{512} << 10, kChunk = size_t{32} << 10;  // in all, and of one; they stay in the caches
constexpr size_t kInPage = 16;  // the offset of large arrays in their first page: behind malloc()'s header

// Private memory like that of arrays, of `bytes` bytes, and chunks. mmap(), because malloc() changes how it treats the
// program's own large blocks once it has seen one freed.
class Scratch {
 public:
  Scratch(size_t bytes, size_t chunk_bytes) : buffer_(bytes + 2 * 4096), all_(2 * buffer_ + chunk_bytes) {
    void* at = ::mmap(nullptr, all_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    base_ = at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
  }
  ~Scratch() {
    if (base_ != nullptr) ::munmap(base_, all_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  bool there() const { return base_ != nullptr; }
  std::byte* source() const { return base_ + kInPage; }
  std::byte* target() const { return base_ + buffer_ + kInPage; }
  std::byte* chunks() const { return base_ + 2 * buffer_; }

 private:
  size_t buffer_, all_;
  std::byte* base_;
};

// Caches are indexed by physical addresses, so the speed of a copy depends on the pages it gets, each time. Several
// places make a bad one harmless.
using Places = std::array<Scratch, 3>;

Places places_for(size_t bytes, size_t chunk_bytes = 0) {
  return {Scratch(bytes, chunk_bytes), Scratch(bytes, chunk_bytes), Scratch(bytes, chunk_bytes)};
}

int64_t cpu_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Copies to a target `misplaced` bytes further in its page than the source.
bool by_kernel(const Scratch& scratch, size_t bytes, size_t misplaced = 0) {
  const iovec from{scratch.source(), bytes}, to{scratch.target() + misplaced, bytes};
  return ::process_vm_readv(::getpid(), &to, 1, &from, 1, 0) == static_cast<ssize_t>(bytes);
}

bool by_chunks(const Scratch& scratch, size_t bytes, size_t* position) {
  for (size_t i = 0; i < bytes; i += kChunk) {
    std::byte* chunk = scratch.chunks() + *position;
    copy_bytes(chunk, scratch.source() + i, kChunk);
    copy_bytes(scratch.target() + i, chunk, kChunk);
    *position = (*position + kChunk) % kChunks;
  }
  return true;
}

// Returns the shortest of several times, each with a source that was just written. Negative when a copy failed.
template <class Copy>
int64_t shortest(const Places& places, size_t bytes, Copy copy) {
  int64_t best = INT64_MAX;
  for (const Scratch& scratch : places) {
    if (!scratch.there()) return -1;
    for (int i = 0; i < 3; ++i) {
      std::memset(scratch.source(), i, bytes);
      const int64_t begin = cpu_time();
      if (!copy(scratch)) return -1;
      best = std::min(best, cpu_time() - begin);
    }
  }
  return best;
}

size_t measure() {
  const Places places = places_for(kMostCalibrated, kChunks);
  size_t pays_from = SIZE_MAX, position = 0;
  for (size_t bytes = kMostCalibrated; bytes >= kLeastCalibrated; bytes /= 2) {
    const int64_t one = shortest(places, bytes, [&](const Scratch& at) { return by_kernel(at, bytes); });
    const int64_t two = shortest(places, bytes, [&](const Scratch& at) { return by_chunks(at, bytes, &position); });
    if (one < 0 || one > two) break;
    pays_from = bytes;
  }
  return pays_from;
}

bool measure_stumbling() {
  constexpr size_t kBytes = size_t{32} << 10, kMisplaced = 16;  // as adjacent arrays in one block of malloc() are
  const Places places = places_for(kBytes);
  const int64_t even = shortest(places, kBytes, [](const Scratch& at) { return by_kernel(at, kBytes); });
  const int64_t misplaced =
      shortest(places, kBytes, [](const Scratch& at) { return by_kernel(at, kBytes, kMisplaced); });
  return even > 0 && misplaced > 2 * even;
}

}  // namespace

// No locks below: threads that ask for the first time at once all measure, and a forked child never waits for one.

bool cma_stumbles() {
  enum : int { unknown, no, yes };
  static std::atomic<int> known{unknown};
  int stumbles = known.load(std::memory_order_relaxed);
  if (stumbles == unknown)
    known.store(stumbles = measure_stumbling() && measure_stumbling() ? yes : no, std::memory_order_relaxed);
  return stumbles == yes;
}

size_t cma_pays_from() {
  static std::atomic<size_t> known{0};
  size_t bytes = known.load(std::memory_order_relaxed);
  if (bytes == 0) known.store(bytes = measure(), std::memory_order_relaxed);
  return bytes;
}

}  // namespace a2a::shm
