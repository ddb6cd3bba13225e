// The parts of the shared-memory transport that can be tested one by one.
#include <sched.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>
#include <string>

#include "check.h"
#include "transport/shm/copy/calibration.h"
#include "transport/shm/copy/copy.h"
#include "transport/shm/copy/pages.h"
#include "transport/shm/copy/staging.h"
#include "transport/shm/peers/membership.h"
#include "transport/shm/policy/machine.h"
#include "transport/shm/policy/placement.h"
#include "transport/shm/protocol/chunks.h"
#include "transport/shm/protocol/protocol.h"

namespace {

using namespace a2a;
using namespace a2a::shm;
using std::chrono::nanoseconds;
using Bytes = std::vector<std::byte>;

constexpr size_t kPage = 4096;

Bytes random_bytes(check::Random& random, size_t n) {
  Bytes bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

TEST("copies at every distance within a page, each way, nothing written beside them") {
  using Copy = void (*)(std::byte* to, const std::byte* from, size_t bytes);
  const std::vector<Copy> ways = {
      [](std::byte* to, const std::byte* from, size_t bytes) { copy_bytes(to, from, bytes); },
      [](std::byte* to, const std::byte* from, size_t bytes) { copy_bytes(to, from, bytes, Stores::streaming); },
#if defined(__x86_64__)
      [](std::byte* to, const std::byte* from, size_t bytes) { copy_by_loop(to, from, bytes); },
      copy_by_string,
#endif
  };
  check::Random random(check::seed());
  const Bytes from = random_bytes(random, 5 * kPage);
  for (size_t distance = 0; distance < kPage; distance += distance < 130 ? 1 : 97) {
    for (const Copy copy : ways) {
      const check::Note note("distance", distance);
      const size_t bytes = random.in(size_t{0}, distance % 2 == 0 ? 4 * kPage : 100);
      Bytes to(6 * kPage, std::byte{0xAA}), expected = to;
      std::memcpy(expected.data() + distance, from.data() + 7, bytes);
      copy(to.data() + distance, from.data() + 7, bytes);
      if (!CHECK(to == expected)) return;
    }
  }
}

// Bytes cut into runs of any length, with a gap before each.
struct Cut {
  std::vector<Run> runs;
  size_t span = 0;  // bytes of memory that they need

  Cut(check::Random& random, size_t bytes, size_t longest) {
    for (size_t left = bytes; left > 0;) {
      const size_t run = std::min(left, random.in(size_t{1}, longest)), gap = random.in(size_t{0}, size_t{70});
      runs.push_back({0, nullptr, run});
      gaps.push_back(gap);
      span += gap + run;
      left -= run;
    }
  }
  void lie_in(std::byte* memory) {
    for (size_t i = 0; i < runs.size(); memory += runs[i++].bytes) runs[i].data = memory += gaps[i];
  }

 private:
  std::vector<size_t> gaps;
};

TEST("process_vm_readv at every small distance, in pieces, over several runs") {
  check::Random random(check::seed());
  Bytes source = random_bytes(random, 600'000), target(source.size() + kPage);
  for (size_t i = 0; i < 160; ++i) {
    const size_t distance = i / 2;
    const auto read = i % 2 == 0 ? cma_copy : cma_copy_by_way_of_buffer;
    const check::Note note("distance", distance);
    std::ranges::fill(target, std::byte{0xAA});
    // The target is `distance` bytes behind the source, modulo the page.
    const auto shift =
        (reinterpret_cast<uintptr_t>(source.data()) + distance - reinterpret_cast<uintptr_t>(target.data())) % kPage;
    std::byte* const to = target.data() + shift;
    const std::vector<Run> sources = {{0, source.data(), 100'001}, {0, source.data() + 200'000, 250'000}};
    const std::vector<Run> targets = {{0, to, 300'000}, {0, to + 400'000, 50'001}};
    Cursor from{sources}, into{targets};
    size_t left = 350'001;
    while (left > 0) {
      const ssize_t copied = read(getpid(), from, into, std::min<size_t>(left, 200'000));
      if (!CHECK(copied > 0)) return;
      left -= static_cast<size_t>(copied);
    }
    CHECK(from.at_end() && into.at_end());
    Bytes stream(source.begin(), source.begin() + 100'001);
    stream.insert(stream.end(), source.begin() + 200'000, source.begin() + 450'000);
    CHECK(std::memcmp(to, stream.data(), 300'000) == 0);
    CHECK(std::memcmp(to + 400'000, stream.data() + 300'000, 50'001) == 0);
    CHECK(to[300'000] == std::byte{0xAA} && to[399'999] == std::byte{0xAA} && to[450'001] == std::byte{0xAA});
  }
}

TEST("a pair has room for several chunks, whatever the size of the group") {
  for (int size = 1; size <= kMaxRanks; ++size) {
    const ChunkShape shape = ChunkShape::of(size);
    CHECK(shape.share >= 2 && 2 * shape.share <= kListed && shape.bytes >= 4096);
  }
}

// Two ends of a pair, without the bytes.
struct Ends {
  explicit Ends(unsigned share) : shape{4096, share} {}

  ChunkShape shape;
  std::array<Bytes, 2> shares{Bytes(shape.share_bytes()), Bytes(shape.share_bytes())};
  std::array<Pipe<StdAtomics>, 2> pipes{};
  std::array<Chunks, 2> chunks{Chunks(shape, true), Chunks(shape, false)};

  void bring(int end) {
    chunks[end].bring(shares[end].data());
    chunks[1 - end].find(shares[end].data());
  }
  // Hands over a chunk. Returns whether there was one.
  bool hand(int from) {
    if (chunks[from].none_free()) CHECK(chunks[from].collect(pipes[1 - from].returned));
    if (chunks[from].none_free()) return false;
    chunks[from].hand_over(pipes[from].handed);
    publish_count(pipes[from].handed, chunks[from].handed());
    return true;
  }
  bool take(int to) {
    if (chunks[to].taken() == count_of(pipes[1 - to].handed)) return false;
    const uint8_t chunk = listed(pipes[1 - to].handed, chunks[to].taken());
    CHECK(chunks[to].is_theirs(chunk));
    chunks[to].take(chunk, 100);
    return true;
  }
  void share_out(int end) { CHECK(chunks[end].give_back_surplus(pipes[1 - end].returned, pipes[end].returned)); }
};

TEST("whoever has nothing in its way can always fill a chunk, whatever went to and fro before") {
  check::Random random(check::seed());
  for (int round = 0; round < 300; ++round) {
    Ends ends(round % 2 == 0 ? 2 : 4);
    for (int step = 0; step < 200; ++step) {
      // An operation that both abandon, after one end has handed over all that it could.
      if (const int end = random.in(0, 3); end < 2 && ends.chunks[end].share() != nullptr) {
        const uint64_t first = ends.chunks[end].handed();
        uint64_t count = 0;
        while (count < 5 && ends.hand(end)) ++count;
        ends.chunks[end].take_back(ends.pipes[end].handed, first, count);
        CHECK(ends.chunks[1 - end].skip_to(first + count));
      }
      // An operation: each end sends some chunks, interleaved at random.
      std::array<int, 2> left{random.in(0, 9), random.in(0, 9)}, to_come{left[1], left[0]};
      for (int end : {0, 1}) {
        if (left[end] > 0 && ends.chunks[end].share() == nullptr) ends.bring(end);
      }
      int idle = 0;
      while (left[0] + left[1] + to_come[0] + to_come[1] > 0) {
        const int end = random.in(0, 1);
        const bool moved = random.chance(0.5) ? left[end] > 0 && ends.hand(end) && left[end]-- > 0
                                              : to_come[end] > 0 && ends.take(end) && to_come[end]-- > 0;
        if (left[end] == 0) ends.share_out(end);
        idle = moved ? 0 : idle + 1;
        if (!CHECK(idle < 200)) return;
      }
      ends.share_out(0);
      ends.share_out(1);
    }
  }
}

TEST("a rank knows how much of a chunk it has read since the chunk is its own") {
  Ends ends(2);
  ends.bring(0);
  ends.bring(1);
  const auto newest = [&](int end) { return ends.chunks[end].next(); };
  CHECK_EQ(ends.chunks[0].read(newest(0)), 0);
  const uint8_t chunk = newest(0);
  CHECK(ends.hand(0) && ends.take(1));
  CHECK(newest(1) == chunk && ends.chunks[1].read(chunk) == 100 && ends.chunks[0].read(chunk) == 0);
  ends.share_out(1);  // it has one more chunk than it allocated: the peer gets it back unread
  CHECK(ends.chunks[0].collect(ends.pipes[1].returned));
  CHECK(newest(0) == chunk && ends.chunks[0].read(chunk) == 0 && ends.chunks[1].read(chunk) == 0);
}

TEST("chunks that cannot be the peer's are nonsense") {
  Ends ends(4);
  ends.bring(0);
  Chunks& lower = ends.chunks[0];
  CHECK(!lower.is_theirs(0));  // its own, and free
  CHECK(!lower.is_theirs(4));  // the peer has not allocated any
  CHECK(!lower.is_theirs(8) && !lower.is_theirs(255));
  Pipe<StdAtomics> pipe{};
  publish_count(pipe.returned, 9);  // more than there are
  CHECK(!lower.collect(pipe.returned));
  publish_count(pipe.returned, 1);  // its own
  CHECK(!lower.collect(pipe.returned));
  CHECK(lower.skip_to(3) && !lower.skip_to(2));
}

// Removes an environment variable, or sets it, as long as this exists.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    const char* before = std::getenv(name);
    if (before != nullptr) before_ = before;
    value != nullptr ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Variable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// Returns the CPU time of this thread in nanoseconds.
int64_t cpu_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

TEST("where the kernel's copy pays is measured once") {
  int64_t begin = cpu_time();
  const size_t measured = cma_pays_from();
  const int64_t measuring = cpu_time() - begin;
  CHECK(measured == kLeastCalibrated || measured == 1 << 20 || measured == SIZE_MAX);
  begin = cpu_time();
  CHECK_EQ(cma_pays_from(), measured);
  CHECK(cpu_time() - begin < measuring / 3);
}

// Memory that begins at the alignment of a huge page.
class Pages {
 public:
  Pages(size_t bytes, int advice) : bytes_(bytes + kHuge) {
    at_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    begin_ = static_cast<std::byte*>(at_) + -reinterpret_cast<uintptr_t>(at_) % kHuge;
    renew(advice);
  }
  ~Pages() { ::munmap(at_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  // Replaces the pages by new ones at the same address.
  void renew(int advice) {
    const size_t bytes = bytes_ - kHuge;
    ::madvise(begin_, bytes, MADV_DONTNEED);
    ::madvise(begin_, bytes, advice);
    std::memset(begin_, 1, bytes);
  }

  Run run(size_t from, size_t bytes) const { return {0, begin_ + from, bytes}; }

 private:
  static constexpr size_t kHuge = size_t{2} << 20;
  size_t bytes_;
  void* at_;
  std::byte* begin_;
};

// Returns the bytes of this process in huge pages, as the kernel counts them.
size_t bytes_in_huge_pages() {
  std::ifstream file("/proc/self/smaps_rollup");
  size_t kilobytes = 0;
  for (std::string line; std::getline(file, line);) std::sscanf(line.c_str(), "AnonHugePages: %zu", &kilobytes);
  return kilobytes << 10;
}

// Whether the kernel has the call, which it has from Linux 6.7 on.
bool kernel_tells_of_pages() {
  utsname system{};
  ::uname(&system);
  int major = 0, minor = 0;
  return std::sscanf(system.release, "%d.%d", &major, &minor) == 2 && (major > 6 || (major == 6 && minor >= 7));
}

TEST("memory in huge pages is told from other memory") {
  constexpr size_t kMiB = size_t{1} << 20;
  const size_t before = bytes_in_huge_pages();
  const Pages huge(16 * kMiB, MADV_HUGEPAGE);
  const bool are_huge = bytes_in_huge_pages() >= before + 16 * kMiB;  // the machine may have none
  const Pages small(16 * kMiB, MADV_NOHUGEPAGE);
  const auto any = [](std::vector<Run> runs) { return has_huge_pages(runs); };
  if (are_huge) {
    CHECK(any({huge.run(16, 12 * kMiB)}));
    CHECK(any({huge.run(0, 4 * kMiB), huge.run(5, 0), huge.run(0, 1)}));
    CHECK(any({small.run(16, 12 * kMiB), huge.run(0, 4 * kMiB)}));
  }
  if (!kernel_tells_of_pages()) return;
  CHECK(!any({small.run(0, 16 * kMiB)}) && !any({}));
  CHECK(!any({small.run(16, 15 * kMiB), huge.run(0, 1 * kMiB)}));
}

// A mapped file that was not read through this mapping.
class FilePages {
 public:
  FilePages(size_t bytes, int protection) : bytes_(bytes) {
    std::FILE* file = std::tmpfile();
    CHECK_EQ(::ftruncate(::fileno(file), static_cast<off_t>(bytes)), 0);
    at_ = ::mmap(nullptr, bytes, protection, MAP_SHARED, ::fileno(file), 0);
    ::madvise(at_, bytes, MADV_RANDOM);  // one page for each fault
    std::fclose(file);
  }
  ~FilePages() { ::munmap(at_, bytes_); }
  FilePages(const FilePages&) = delete;
  FilePages& operator=(const FilePages&) = delete;

  Run run(size_t from, size_t bytes) const { return {0, static_cast<std::byte*>(at_) + from, bytes}; }

 private:
  size_t bytes_;
  void* at_;
};

bool read_pages(const Run& run) {
  int sum = 0;
  for (size_t i = 0; i < run.bytes; i += 4096)
    sum += std::to_integer<int>(*const_cast<volatile std::byte*>(run.data + i));
  return sum >= 0;
}

TEST("memory that is not there is told from memory that is") {
  constexpr size_t kMiB = size_t{1} << 20, kPage = 4096;
  const auto all = [](std::vector<Run> runs) { return are_present(runs); };
  const Pages pages(8 * kMiB, MADV_NOHUGEPAGE);
  CHECK(all({}) && all({pages.run(0, 8 * kMiB)}) && all({pages.run(17, 3), pages.run(kMiB, 5 * kMiB)}));
  ::madvise(pages.run(4 * kMiB, 0).data, kPage, MADV_DONTNEED);
  CHECK(!all({pages.run(0, 8 * kMiB)}) && !all({pages.run(4 * kMiB + kPage - 1, 1)}));
  CHECK(all({pages.run(0, 4 * kMiB)}) && all({pages.run(4 * kMiB + kPage, kMiB)}));
  // If runs are far apart only their own pages count; if they are close, the pages between them as well.
  CHECK(all({pages.run(0, kPage), pages.run(7 * kMiB, kPage)}));
  CHECK(!all({pages.run(4 * kMiB - kPage, kPage), pages.run(4 * kMiB + kPage, kPage)}));
  for (const int protection : {PROT_READ, PROT_READ | PROT_WRITE}) {
    const FilePages file(kMiB, protection);
    CHECK(!all({file.run(0, kMiB)}));
    CHECK(read_pages(file.run(0, kMiB / 2)));
    CHECK(all({file.run(0, kMiB / 2)}) && !all({file.run(0, kMiB)}));
  }
}

TEST("what this process cannot read is noticed without a signal") {
  constexpr size_t kMiB = size_t{1} << 20;
  const Pages pages(4 * kMiB, MADV_NOHUGEPAGE);
  const std::array<Run, 2> runs{pages.run(5, kMiB), pages.run(2 * kMiB, kMiB)};
  CHECK(can_be_read({runs}) && can_be_read({}));
  ::mprotect(pages.run(3 * kMiB - 4096, 0).data, 4096, PROT_NONE);
  CHECK(!can_be_read({runs}));
  CHECK(can_be_read({std::span(runs).first(1)}));
}

TEST("an answer about huge pages stands for a while, for the same memory") {
  if (!kernel_tells_of_pages()) return;
  constexpr size_t kMiB = size_t{1} << 20;
  Pages pages(16 * kMiB, MADV_NOHUGEPAGE);
  const std::vector<Run> some{pages.run(0, 8 * kMiB)}, more{pages.run(0, 9 * kMiB)};
  HugePages asked;
  CHECK(!asked.in(some) && !asked.in({}));
  const size_t before = bytes_in_huge_pages();
  pages.renew(MADV_HUGEPAGE);
  if (bytes_in_huge_pages() < before + 16 * kMiB) return;  // the machine may have none
  CHECK(!asked.in(some));
  CHECK(asked.in(more) && asked.in(some));
  pages.renew(MADV_NOHUGEPAGE);
  int stood = 0;
  while (asked.in(some)) ++stood;
  CHECK_EQ(stood, 255);
}

TEST("lines that have to come back are slow earlier") {
  StagingStores near, far(StagingStores::kSlowestFar);
  for (int i = 0; i < 3; ++i) near.took(10240, nanoseconds(1500)), far.took(10240, nanoseconds(1500));
  CHECK(near.choose() == Stores::cached && far.choose() == Stores::streaming);
}

TEST("staging goes past the caches after several slow chunks, and comes back") {
  constexpr size_t kBytes = 32768;
  constexpr auto kFast = nanoseconds(100 * 32), kSlow = nanoseconds(400 * 32);
  StagingStores stores;
  int due = 0;
  for (int i = 0; i < 100; ++i) due += stores.is_due();
  CHECK_EQ(due, 25);
  for (int i = 0; i < 10; ++i) {  // a single interruption may spoil one measurement
    stores.took(kBytes, kSlow);
    CHECK(stores.is_due() && stores.is_due());  // it may be the first of several
    stores.took(kBytes, kFast);
    CHECK(stores.choose() == Stores::cached);
  }
  for (int i = 0; i < 3; ++i) stores.took(kBytes, kSlow);
  CHECK(stores.choose() == Stores::streaming);
  int streamed = 0;
  for (; stores.choose() == Stores::streaming && streamed < 10'000; ++streamed) stores.took(kBytes, kFast);
  CHECK_EQ(streamed, 256);
  stores.took(kBytes, kSlow);  // still slow: one try is enough
  CHECK(stores.choose() == Stores::streaming);
  while (stores.choose() == Stores::streaming) stores.took(kBytes, kFast);
  stores.took(kBytes, kFast);
  stores.took(kBytes, kSlow);
  CHECK(stores.choose() == Stores::cached);
}

// A stand-in for a communicator whose operation never ends.
class Stuck final : public Active {
 public:
  bool beside = false;
  int looks = 0;

  bool advance() override {
    ++looks;
    return false;
  }
  void check(Deadline::Clock::time_point, bool) override {}
  bool beside_peer() override { return beside; }
};

TEST("a rank does not spin while a peer stands in line for its CPU") {
  ShmProgress progress;
  Stuck stuck;
  const auto never = [] { return false; };
  progress.enter(&stuck);
  CHECK(!progress.wait_briefly(never));
  CHECK(stuck.looks > 50);
  stuck.looks = 0;
  stuck.beside = true;
  CHECK(!progress.wait_briefly(never));
  CHECK_EQ(stuck.looks, 1);
  progress.leave(&stuck);
}

TEST("a rank that shares CPUs yields for a moment, and none where ranks are threads or looks are slow") {
  const auto looks = [](const Surroundings& surroundings, bool threads, bool slow) {
    ShmProgress progress;
    Stuck stuck;
    progress.enter(&stuck);
    progress.note(surroundings.oversubscribed(), threads);
    if (slow) progress.note_slow_looks();
    const auto begin = Deadline::Clock::now();
    CHECK(!progress.wait_briefly([] { return false; }));
    CHECK(Deadline::Clock::now() - begin < std::chrono::seconds(1));
    progress.leave(&stuck);
    return stuck.looks;
  };
  CHECK(looks({8, 2}, false, false) > 0);
  CHECK_EQ(looks({8, 2}, true, false), 0);
  CHECK_EQ(looks({2, 2}, true, false), 0);
  CHECK_EQ(looks({8, 2}, false, true), 0);
}

TEST("two ranks share a CPU when both have said so") {
  SeatWords here{}, there{};
  CHECK(!on_same_cpu(here, there));  // no rank has announced a CPU
  announce_cpu(here);
  CHECK(!on_same_cpu(here, there));
  there.cpu = here.cpu.load();
  CHECK(on_same_cpu(here, there));
  there.cpu = here.cpu + 1;
  CHECK(!on_same_cpu(here, there));
}

TEST("ranks that crowd one CPU spread, and keep the set of CPUs allowed to them") {
  cpu_set_t before, after;
  if (!CHECK(sched_getaffinity(0, sizeof(before), &before) == 0)) return;
  SeatWords seats[4] = {};
  const SeatWords* const all[] = {&seats[0], &seats[1], &seats[2], &seats[3]};
  const auto crowd = [&seats](size_t ranks) {
    announce_cpu(seats[0]);
    for (size_t i = 0; i < 4; ++i) seats[i].cpu = i < ranks ? seats[0].cpu.load() : 0;
  };
  crowd(1);
  CHECK(!spread(all, 0));  // alone
  crowd(3);
  CHECK(!spread(all, 0));  // the last one moves, not this one
  CHECK(!spread(all, 3));  // its CPU is unknown
  seats[1].cpu = 0xFFFFFFFF;
  CHECK(!spread(all, 0));  // an invalid number of a peer is no rank's CPU
  const bool can_move = CPU_COUNT(&before) > 1;
  crowd(3);
  CHECK_EQ(spread(all, 2), can_move);
  announce_cpu(seats[2]);
  CHECK(!can_move || seats[2].cpu != seats[0].cpu);
  if (!CHECK(sched_getaffinity(0, sizeof(after), &after) == 0)) return;
  CHECK(CPU_EQUAL(&before, &after));
}

}  // namespace
