// The chunks of one pair: who owns which, what is free, and what a peer may claim.
#include "transport/shm/protocol/chunks.h"

#include <array>
#include <vector>

#include "check.h"
#include "transport/shm/protocol/protocol.h"

namespace {

using namespace a2a;
using namespace a2a::shm;
using Bytes = std::vector<std::byte>;

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

TEST("a rank can always fill a chunk when its earlier operations are done") {
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

TEST("chunks that cannot be the peer's are invalid") {
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

}  // namespace
