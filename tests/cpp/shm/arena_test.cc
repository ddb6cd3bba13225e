// The allocator of the memory that a process shares.
#include "transport/shm/memory/arena.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "check.h"

namespace {

using namespace a2a;
using shm::Arena;

constexpr size_t kPage = 4096, kMiB = size_t{1} << 20;

TEST("random blocks are aligned, zeroed, in the segment and apart from each other") {
  check::Random random(check::seed());
  Arena arena("test", 32 * kMiB);
  std::map<std::byte*, size_t> blocks;
  for (int i = 0; i < 2000; ++i) {
    if (!blocks.empty() && random.chance(0.5)) {
      const auto block = std::next(blocks.begin(), static_cast<ptrdiff_t>(random.in(size_t{0}, blocks.size() - 1)));
      arena.release(block->first);
      blocks.erase(block);
      continue;
    }
    const size_t bytes = random.chance(0.05) ? random.in(kMiB, 2 * kMiB) : random.in(size_t{1}, 3 * kPage);
    if (blocks.size() > 100) continue;
    std::byte* const data = arena.allocate(bytes);
    CHECK_EQ(reinterpret_cast<uintptr_t>(data) % (bytes >= kPage ? kPage : 64), 0);
    CHECK(arena.contains(data, bytes));
    CHECK(std::all_of(data, data + bytes, [](std::byte b) { return b == std::byte{0}; }));
    const auto after = blocks.lower_bound(data);
    CHECK(after == blocks.end() || data + bytes <= after->first);
    CHECK(after == blocks.begin() || std::prev(after)->first + std::prev(after)->second <= data);
    std::memset(data, 0xAB, bytes);
    blocks[data] = bytes;
  }
  for (const auto& [data, bytes] : blocks) arena.release(data);
  CHECK_EQ(arena.allocated(), 0);
}

TEST("released neighbours merge, so that one block takes all of their room") {
  Arena arena("test", 16 * kMiB);
  std::byte* blocks[8];
  for (std::byte*& block : blocks) block = arena.allocate(2 * kMiB);
  CHECK_THROWS(Code::backend, "", arena.allocate(64));
  for (const int i : {1, 3, 2, 7, 0, 5, 4, 6}) arena.release(blocks[i]);
  CHECK(arena.allocate(16 * kMiB) == blocks[0]);
}

TEST("reserved bytes are never allocated") {
  Arena arena("test", 16 * kMiB, 2 * kPage);
  CHECK_EQ(arena.offset(arena.allocate(64)), 2 * kPage);
  CHECK_THROWS(Code::backend, "", arena.allocate(16 * kMiB - kPage));
  arena.commit(0, 2 * kPage);
  std::memset(arena.base(), 1, 2 * kPage);
}

TEST("a segment contains exactly its own bytes") {
  Arena arena("test", 16 * kMiB);
  CHECK(arena.contains(arena.base(), arena.bytes()));
  CHECK(arena.contains(arena.base() + arena.bytes(), 0));
  CHECK(!arena.contains(arena.base() + 1, arena.bytes()));
  CHECK(!arena.contains(arena.base() - 1, 1));
  CHECK(!arena.contains(arena.base() + arena.bytes(), 1));
  CHECK(!arena.contains(arena.base() + 64, SIZE_MAX));
}

TEST("a pinned block is freed when it is released and unpinned") {
  Arena arena("test");
  std::byte* const block = arena.allocate(1000);
  std::byte* const next = arena.allocate(64);
  CHECK(arena.pin(block + 10, 990) == block);
  CHECK(arena.pin(block + 999, 1) == block);
  CHECK(arena.pin(block + 10, 1100) == nullptr);
  CHECK(arena.pin(next + 64, 1) == nullptr);
  CHECK(arena.pin(arena.base() - 1, 1) == nullptr);
  CHECK(arena.pin(arena.base() + arena.bytes(), 1) == nullptr);
  const size_t all = arena.allocated();
  arena.release(block);
  CHECK_EQ(arena.allocated(), all);
  CHECK(arena.pin(block, 1) == nullptr);  // it has no owner any more
  arena.unpin(block);
  CHECK_EQ(arena.allocated(), all);
  arena.unpin(block);
  CHECK_EQ(arena.allocated(), 64);
  CHECK(arena.allocate(1000) == block);
  CHECK(arena.pin(next, 64) == next);
  arena.unpin(next);
  CHECK_EQ(arena.allocated(), all);
}

}  // namespace
