#include "transport/hosts/runs.h"

#include <array>

#include "check.h"

namespace {

using namespace a2a;
using namespace a2a::hosts;

std::array<std::byte, 32> memory;

Run run(size_t at, size_t bytes, Rank peer = 0) { return {peer, memory.data() + at, bytes}; }

TEST("a piece of a list has the bytes from its offset on, across runs") {
  const std::vector<Run> runs{run(0, 4), run(10, 5), run(20, 6)};
  CHECK_EQ(bytes_of(runs), 15);
  for (size_t offset = 0; offset <= 15; ++offset) {
    for (size_t bytes = 0; bytes <= 15 - offset; ++bytes) {
      std::vector<Run> piece;
      append_piece(piece, 7, runs, offset, bytes);
      std::vector<std::byte*> expected, found;
      for (const Run& one : runs) {
        for (size_t i = 0; i < one.bytes; ++i) expected.push_back(one.data + i);
      }
      for (const Run& one : piece) {
        CHECK(one.peer == 7 && one.bytes > 0);
        for (size_t i = 0; i < one.bytes; ++i) found.push_back(one.data + i);
      }
      const auto begin = expected.begin() + static_cast<ptrdiff_t>(offset);
      if (!CHECK(found == std::vector(begin, begin + static_cast<ptrdiff_t>(bytes)))) return;
    }
  }
}

TEST("all runs of a list are appended as those of one peer") {
  std::vector<Run> to{run(0, 1, 2)};
  append_runs(to, 5, std::vector<Run>{run(4, 2, 1), run(8, 3, 3)});
  CHECK(to == std::vector<Run>({run(0, 1, 2), run(4, 2, 5), run(8, 3, 5)}));
}

}  // namespace
