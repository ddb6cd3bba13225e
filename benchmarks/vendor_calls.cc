// A library that stands in for the CUDA driver and NCCL at once, under A2A_CUDA_LIBRARY and A2A_NCCL_LIBRARY, and
// counts what a2a calls there. The calls go on to the libraries that VENDOR_CALLS_CUDA and VENDOR_CALLS_NCCL name, and
// the time they take is added up. Where those are not set, every call succeeds at once and does nothing: what an
// operation then costs is a2a's own time.
//
// C's convention on 64-bit Linux passes integers and pointers alike, as words: one signature does for nearly all calls.
#include <dlfcn.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

// By this symbol a2a's loader knows that it is no vendor's library, and wants A2A_TEST_DOUBLES=1.
EXPORT const char a2a_test_double[];
const char a2a_test_double[] = "This library counts a2a's calls of a vendor's libraries.";

namespace {

using Word = intptr_t;

struct UniqueId {
  char bytes[128];
};

// One function of the vendors. Ranks that are measured call one at a time, so that no sum needs a read-modify-write.
struct Entry {
  explicit Entry(const char* name_) : name(name_) {
    const char* const variable = std::strncmp(name, "nccl", 4) == 0 ? "VENDOR_CALLS_NCCL" : "VENDOR_CALLS_CUDA";
    if (const char* const path = std::getenv(variable); path != nullptr && *path != '\0') {
      void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
      behind = library == nullptr ? nullptr : dlsym(library, name);
      absent = behind == nullptr;
    }
    const std::lock_guard lock(mutex());
    all().push_back(this);
  }

  template <class... Arguments>
  Word call(Arguments... arguments) {
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (absent) return kUnsupported;
    if (behind == nullptr) return 0;
    const int64_t start = now();
    const Word result = reinterpret_cast<Word (*)(Arguments...)>(behind)(arguments...);
    nanoseconds.store(nanoseconds.load(std::memory_order_relaxed) + now() - start, std::memory_order_relaxed);
    return result;
  }

  static int64_t now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1'000'000'000 + time.tv_nsec;
  }
  static std::mutex& mutex() {
    static auto& one = *new std::mutex;
    return one;
  }
  static std::vector<Entry*>& all() {
    static auto& list = *new std::vector<Entry*>;
    return list;
  }

  static constexpr Word kUnsupported = 3;  // an error of both vendors
  const char* name;
  void* behind = nullptr;
  bool absent = false;  // from the library behind
  std::atomic<int64_t> count{0}, nanoseconds{0};
};

template <class T>
void put(Word address, T value) {
  *reinterpret_cast<T*>(address) = value;
}

void* some_handle() {
  static char handle;
  return &handle;
}

}  // namespace

// `name` with what it leaves in its arguments when there is nothing behind it.
#define CALL(name, idle)                                             \
  EXPORT Word name(Word a, Word b, Word c, Word d, Word e, Word f) { \
    static Entry& entry = *new Entry(#name);                         \
    const Word result = entry.call(a, b, c, d, e, f);                \
    if (entry.behind == nullptr && !entry.absent) {                  \
      idle;                                                          \
    }                                                                \
    return result;                                                   \
  }

// The same for those with more arguments than registers for them.
#define LONG_CALL(name)                                                              \
  EXPORT Word name(Word a, Word b, Word c, Word d, Word e, Word f, Word g, Word h) { \
    static Entry& entry = *new Entry(#name);                                         \
    return entry.call(a, b, c, d, e, f, g, h);                                       \
  }

CALL(cuInit, )
CALL(cuGetErrorString, put<const char*>(b, ""))
CALL(cuDeviceGetCount, put<int>(a, 8))
CALL(cuDeviceGet, put<int>(a, static_cast<int>(b)))
CALL(cuDeviceGetAttribute, put<int>(a, 9))  // asked for the compute capability alone
CALL(cuDevicePrimaryCtxRetain, put<void*>(a, some_handle()))
CALL(cuCtxPushCurrent_v2, )
CALL(cuCtxPopCurrent_v2, put<void*>(a, some_handle()))
CALL(cuCtxGetCurrent, put<void*>(a, some_handle()))
CALL(cuCtxGetDevice, put<int>(a, 0))
CALL(cuPointerGetAttribute, put<int>(a, b == 2 ? 2 : 0))  // device memory, of device 0
CALL(cuMemcpyAsync, )
CALL(cuStreamCreate, put<void*>(a, some_handle()))
CALL(cuStreamDestroy_v2, )
CALL(cuStreamWaitEvent, )
CALL(cuStreamIsCapturing, put<int>(b, 0))
CALL(cuStreamGetCtx, put<void*>(b, some_handle()))
CALL(cuEventCreate, put<void*>(a, some_handle()))
CALL(cuEventDestroy_v2, )
CALL(cuEventRecord, )
CALL(cuEventQuery, )
CALL(cuThreadExchangeStreamCaptureMode, )

CALL(ncclGetVersion, put<int>(a, 23203))
CALL(ncclGetErrorString, return reinterpret_cast<Word>(""))
CALL(ncclGetLastError, return reinterpret_cast<Word>(""))
CALL(ncclGetUniqueId, put<UniqueId>(a, {}))
CALL(ncclCommFinalize, )
CALL(ncclCommDestroy, )
CALL(ncclCommAbort, )
CALL(ncclCommRevoke, )
CALL(ncclCommGetAsyncError, put<int>(b, 0))
CALL(ncclCommCount, )
CALL(ncclCommUserRank, )
CALL(ncclCommCuDevice, )
CALL(ncclSend, )
CALL(ncclRecv, )
CALL(ncclGroupStart, )
CALL(ncclGroupEnd, )
CALL(ncclAlltoAll, )
CALL(ncclAllGather, )
LONG_CALL(ncclAllReduce)
LONG_CALL(ncclReduceScatter)
LONG_CALL(ncclReduce)
LONG_CALL(ncclBroadcast)

EXPORT Word ncclCommInitRankConfig(Word comm, Word size, UniqueId id, Word rank, Word config) {
  static Entry& entry = *new Entry("ncclCommInitRankConfig");
  const Word result = entry.call(comm, size, id, rank, config);
  if (entry.behind == nullptr && !entry.absent) put<void*>(comm, some_handle());
  return result;
}

// The i-th function that was called: its name, how often, and nanoseconds in it. False behind the last.
EXPORT int vendor_calls(int index, const char** name, int64_t* count, int64_t* nanoseconds) {
  const std::lock_guard lock(Entry::mutex());
  if (static_cast<size_t>(index) >= Entry::all().size()) return 0;
  const Entry& entry = *Entry::all()[static_cast<size_t>(index)];
  *name = entry.name, *count = entry.count, *nanoseconds = entry.nanoseconds;
  return 1;
}

EXPORT void vendor_calls_reset() {
  const std::lock_guard lock(Entry::mutex());
  for (Entry* const entry : Entry::all()) entry->count = 0, entry->nanoseconds = 0;
}
