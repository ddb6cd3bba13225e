// Copies within this process and by the kernel, at every distance within a page.
#include "transport/shm/copy/copy.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "check.h"
#include "core/schedule.h"

namespace {

using namespace a2a;
using namespace a2a::shm;
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

TEST("unreadable memory is detected without a signal") {
  constexpr size_t kMiB = size_t{1} << 20;
  void* const memory = ::mmap(nullptr, 4 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::byte* const begin = static_cast<std::byte*>(memory);
  const std::array<Run, 2> runs{Run{0, begin + 5, kMiB}, Run{0, begin + 2 * kMiB, kMiB}};
  CHECK(can_be_read({runs}) && can_be_read({}));
  ::mprotect(begin + 3 * kMiB - kPage, kPage, PROT_NONE);
  CHECK(!can_be_read({runs}));
  CHECK(can_be_read({std::span(runs).first(1)}));
  ::munmap(memory, 4 * kMiB);
}

}  // namespace
