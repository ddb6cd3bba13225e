// The places of the words that ranks share.
#include "transport/shm/protocol/layout.h"

#include <map>
#include <vector>

#include "check.h"

namespace {

using namespace a2a::shm;

TEST("words, lines and pipes of a block do not overlap, fill the block and are aligned to cache lines") {
  for (const int size : {1, 2, 64, 65, 200}) {
    const check::Note note("ranks", static_cast<uint64_t>(size));
    std::vector<std::byte> memory(Block::bytes(size) + 2 * kCacheLine);
    std::byte* const base =
        memory.data() + (2 * kCacheLine - reinterpret_cast<uintptr_t>(memory.data()) % (2 * kCacheLine));
    const Block block(base, size);
    std::map<std::byte*, size_t> parts{{reinterpret_cast<std::byte*>(&block.words()), sizeof(RankWords)}};
    for (int peer = 0; peer < size; ++peer) {
      parts[reinterpret_cast<std::byte*>(&block.pipe(peer))] = sizeof(Block::Pair);
      for (uint64_t n = 0; n < kSlots; ++n) {
        parts[reinterpret_cast<std::byte*>(&block.line(n, peer))] = line_bytes(static_cast<size_t>(size));
        CHECK(&block.line(n, peer) == &block.line(n + kSlots, peer));
      }
    }
    CHECK_EQ(parts.size(), 1 + static_cast<size_t>(size) * (1 + kSlots));
    std::byte* end = base;
    for (const auto& [begin, bytes] : parts) {
      if (!CHECK(begin == end)) return;
      CHECK_EQ(reinterpret_cast<uintptr_t>(begin) % kCacheLine, 0);
      end = begin + bytes;
    }
    CHECK(end == base + Block::bytes(size));
    CHECK_EQ(block.inline_bytes(), inline_bytes(static_cast<size_t>(size)));
  }
}

TEST("an operation has two steps, and steps count up") {
  for (uint64_t number = 1; number < 10; ++number) {
    CHECK_EQ(last_step(number), first_step(number) + 1);
    CHECK_EQ(first_step(number + 1), last_step(number) + 1);
    CHECK(number_of_step(first_step(number)) == number && number_of_step(last_step(number)) == number);
  }
}

TEST("notices of different operations differ") {
  CHECK(notice(1, 2, 3) != notice(2, 2, 3) && notice(1, 2, 3) != notice(1, 3, 3) && notice(1, 2, 3) != notice(1, 2, 1));
  CHECK_EQ(notice(1, 2, 3), 0x10203);
}

}  // namespace
