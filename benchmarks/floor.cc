// What the machine needs at least. `floor line ITERATIONS` times one round trip of a cache line between two processes.
// `floor copy RANKS SECONDS SAME` reads a RANKS x RANKS matrix of bytes from standard input and times plain copies:
// every rank copies its own part and its peers' parts out of shared memory that their owners have just rewritten.
// SAME is 1 when a rank sends the same bytes to everybody. It runs once with memcpy and once with non-temporal stores
// for large parts, and the faster of the two counts. Prints nanoseconds (medians), the number of wrong words and, of
// `copy`, how many iterations were timed.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "barrier.h"

namespace {

using bench::Line;
using bench::now_ns;

constexpr int64_t kLimitNs = 60'000'000'000;
constexpr int kMinIterations = 5, kMaxIterations = 480;  // As in worker.py.
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kStreamBytes = size_t{256} << 10;   // Smaller parts stay in the cache.
constexpr uint64_t kSourceStep = uint64_t{1} << 32;  // Keeps the words of different sources apart.

struct Exchange {
  int ranks = 0;
  int64_t budget_ns = 0;  // of each kind of copy
  bool same = false;
  std::vector<size_t> bytes;  // [source * ranks + destination]

  size_t part(int source, int destination) const { return bytes[source * ranks + destination]; }
  size_t send_offset(int source, int destination) const {
    if (same) return 0;
    auto row = bytes.begin() + source * ranks;
    return std::accumulate(row, row + destination, size_t{0});
  }
  size_t send_bytes(int source) const { return same ? part(source, 0) : send_offset(source, ranks); }
  size_t recv_bytes(int destination) const {
    size_t sum = 0;
    for (int source = 0; source < ranks; ++source) sum += part(source, destination);
    return sum;
  }
};

// All ranks of one measurement share these; children of one fork see them at the same address.
struct Shared {
  Line* lines;
  std::vector<uint64_t*> sources;
  int64_t* starts;  // [rank * kMaxIterations + iteration]
  int64_t* ends;
  int64_t* iterations;  // made, the same number by all ranks
  int64_t* wrong;       // [rank]
};

void* map_pages(size_t bytes, int flags) {
  size_t rounded = (std::max(bytes, size_t{1}) + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::exit(1);
  }
  if (bytes >= kHugePage) madvise(memory, rounded, MADV_HUGEPAGE);
  return memory;
}

template <class T>
T* map_shared(size_t count) {
  return static_cast<T*>(map_pages(count * sizeof(T), MAP_SHARED));
}

int64_t median(std::vector<int64_t> values) {
  auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <class Body>
bool run_ranks(int ranks, Body body) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(body(rank) ? 0 : 1);
  }
  bool good = true;
  for (int status = 0; wait(&status) > 0;) good = good && status == 0;
  return good;
}

void copy(char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); }

// Stores that do not first read the destination into the cache.
void stream_copy(char* to, const char* from, size_t bytes) {
#if defined(__x86_64__)
  if (bytes >= kStreamBytes && reinterpret_cast<uintptr_t>(to) % 16 == 0 && bytes % 64 == 0) {
    for (size_t at = 0; at < bytes; at += 64) {
      auto* source = reinterpret_cast<const __m128i*>(from + at);
      auto* target = reinterpret_cast<__m128i*>(to + at);
      for (int i = 0; i < 4; ++i) _mm_stream_si128(target + i, _mm_loadu_si128(source + i));
    }
    _mm_sfence();
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

int64_t wrong_words(const Exchange& x, int rank, const uint64_t* recv, uint64_t iteration) {
  int64_t wrong = 0;
  for (int source = 0; source < x.ranks; ++source) {
    uint64_t first = source * kSourceStep + x.send_offset(source, rank) / 8 + iteration;
    for (size_t word = 0; word < x.part(source, rank) / 8; ++word) wrong += *recv++ != first + word;
  }
  return wrong;
}

bool copy_rank(const Exchange& x, const Shared& shared, int rank, bool stream) {
  uint64_t* mine = shared.sources[rank];
  const size_t words = x.send_bytes(rank) / 8;
  for (size_t word = 0; word < words; ++word) mine[word] = rank * kSourceStep + word;
  auto* recv = static_cast<uint64_t*>(map_pages(x.recv_bytes(rank), MAP_PRIVATE));
  std::memset(recv, 1, x.recv_bytes(rank));
  std::vector<size_t> offsets(x.ranks + 1, 0);
  for (int source = 0; source < x.ranks; ++source) offsets[source + 1] = offsets[source] + x.part(source, rank);
  const bool yield = bench::more_ranks_than_cpus(x.ranks);
  const int64_t deadline = now_ns() + x.budget_ns;
  uint64_t round = 0;
  bool last = false;
  for (int i = 0; !last; ++i) {
    for (size_t word = 0; word < words; ++word) ++mine[word];
    ++round;
    const int made = i + 1;
    if (made == kMaxIterations || (made >= kMinIterations && now_ns() > deadline)) {
      bench::make_last(shared.lines, rank, round);
    }
    if (!bench::meet(shared.lines, rank, x.ranks, round, yield, kLimitNs)) return false;
    last = bench::is_last(shared.lines, round);
    int64_t start = now_ns();
    for (int step = 0; step < x.ranks; ++step) {
      int source = (rank + step) % x.ranks;
      const char* from = reinterpret_cast<const char*>(shared.sources[source]) + x.send_offset(source, rank);
      char* to = reinterpret_cast<char*>(recv) + offsets[source];
      (stream ? stream_copy : copy)(to, from, x.part(source, rank));
    }
    int64_t end = now_ns();
    shared.wrong[rank] += wrong_words(x, rank, recv, made);
    if (!bench::meet(shared.lines, rank, x.ranks, ++round, yield, kLimitNs)) return false;
    shared.starts[rank * kMaxIterations + i] = start;
    shared.ends[rank * kMaxIterations + i] = end;
    if (rank == 0) *shared.iterations = made;
  }
  return true;
}

// How many iterations come before those that count.
int64_t warmup(const Shared& shared) { return std::max(int64_t{2}, *shared.iterations / 6); }

// The slowest rank's median, as for every other contender.
int64_t slowest_median(const Exchange& x, const Shared& shared) {
  int64_t slowest = 0;
  for (int rank = 0; rank < x.ranks; ++rank) {
    std::vector<int64_t> times;
    for (int64_t i = warmup(shared); i < *shared.iterations; ++i) {
      times.push_back(shared.ends[rank * kMaxIterations + i] - shared.starts[rank * kMaxIterations + i]);
    }
    slowest = std::max(slowest, median(times));
  }
  return slowest;
}

// From the first rank's start to the last rank's end: what the machine needs for everybody's copies together.
int64_t span_median(const Exchange& x, const Shared& shared) {
  std::vector<int64_t> spans;
  for (int64_t i = warmup(shared); i < *shared.iterations; ++i) {
    int64_t first = shared.starts[i], last = shared.ends[i];
    for (int rank = 1; rank < x.ranks; ++rank) {
      first = std::min(first, shared.starts[rank * kMaxIterations + i]);
      last = std::max(last, shared.ends[rank * kMaxIterations + i]);
    }
    spans.push_back(last - first);
  }
  return median(spans);
}

int measure_copy(const Exchange& x) {
  Shared shared;
  shared.lines = map_shared<Line>(x.ranks);
  shared.starts = map_shared<int64_t>(size_t(x.ranks) * kMaxIterations);
  shared.ends = map_shared<int64_t>(size_t(x.ranks) * kMaxIterations);
  shared.iterations = map_shared<int64_t>(1);
  shared.wrong = map_shared<int64_t>(x.ranks);
  for (int rank = 0; rank < x.ranks; ++rank) shared.sources.push_back(map_shared<uint64_t>(x.send_bytes(rank) / 8));
  int64_t time = INT64_MAX, span = INT64_MAX;
  for (bool stream : {false, true}) {
    std::fill_n(reinterpret_cast<char*>(shared.lines), sizeof(Line) * x.ranks, char{0});
    if (!run_ranks(x.ranks, [&](int rank) { return copy_rank(x, shared, rank, stream); })) return 1;
    time = std::min(time, slowest_median(x, shared));
    span = std::min(span, span_median(x, shared));
  }
  int64_t wrong = std::accumulate(shared.wrong, shared.wrong + x.ranks, int64_t{0});
  std::printf("%ld %ld %ld %ld\n", long(time), long(span), long(wrong), long(*shared.iterations - warmup(shared)));
  return 0;
}

// Rank 0 announces round 1, 2, ...; rank 1 answers each. Batches of 100 round trips hide the cost of the clock.
int measure_line(int batches) {
  constexpr int kTrips = 100;
  Line* lines = map_shared<Line>(2);
  int64_t* times = map_shared<int64_t>(batches);
  auto wait_for = [&](int rank, uint64_t round) {
    while (lines[rank].round.load(std::memory_order_acquire) < round) bench::pause_once(false);
  };
  bool good = run_ranks(2, [&](int rank) {
    if (!bench::meet(lines, rank, 2, 1, false, kLimitNs)) return false;
    uint64_t round = 1;
    for (int batch = 0; batch < batches; ++batch) {
      int64_t start = now_ns();
      for (int trip = 0; trip < kTrips; ++trip) {
        ++round;
        if (rank == 1) wait_for(0, round);
        lines[rank].round.store(round, std::memory_order_release);
        if (rank == 0) wait_for(1, round);
      }
      if (rank == 0) times[batch] = (now_ns() - start) / kTrips;
    }
    return true;
  });
  if (!good) return 1;
  std::printf("%ld %ld 0\n", long(median({times, times + batches})), long(*std::min_element(times, times + batches)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "line" && argc == 3) return measure_line(std::max(1, std::atoi(argv[2])));
  if (mode != "copy" || argc != 5) {
    std::fprintf(stderr, "usage: floor line ITERATIONS | floor copy RANKS SECONDS SAME < matrix\n");
    return 2;
  }
  Exchange x;
  x.ranks = std::atoi(argv[2]);
  x.budget_ns = static_cast<int64_t>(std::atof(argv[3]) * 1e9);
  x.same = std::atoi(argv[4]) != 0;
  x.bytes.resize(size_t(x.ranks) * x.ranks);
  for (size_t& bytes : x.bytes) {
    if (std::scanf("%zu", &bytes) != 1) return 2;
  }
  return measure_copy(x);
}
