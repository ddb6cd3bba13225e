// Operations that this rank runs on a device without comparing them, and what peers on other hosts say of them.
#include "check.h"
#include "one_rank.h"

namespace {

using namespace a2a;
using namespace a2a::hosts;
using hosts_test::OneRank;

TEST("ranks that compare an operation are told that this one runs it without, and the next is in step") {
  OneRank rank(3);
  rank.come(1, 1);
  CHECK(!rank.transport().broken());
  CHECK(!rank.transport().pass(OneRank::barrier(1)));
  rank.come(2, 1);
  CHECK(!rank.transport().broken());
  for (const Rank peer : {1, 2}) {
    const auto told = rank.told(peer, MessageKind::passed);
    CHECK(told.size() == 1 && told[0].first.number == 1);
  }
  rank.come(1, 2), rank.come(2, 2);
  rank.start(2)->wait();
}

TEST("a peer that runs another operation, or one on other memory, contradicts one that was passed") {
  Signature other = OneRank::barrier(1), elsewhere = other;
  other.op = Op::alltoall;
  elsewhere.memory = Memory::cuda;
  for (const Signature& mine : {OneRank::barrier(1), other, elsewhere}) {
    OneRank rank(2);
    CHECK(!rank.transport().pass(mine) && !rank.transport().contradiction(mine));
    rank.come(1, 1);
    const auto found = rank.transport().contradiction(mine);
    if (mine.op == Op::barrier && mine.memory == Memory::host) {
      CHECK(!found);
      continue;
    }
    if (!CHECK(found && found->code() == Code::mismatch)) continue;
    CHECK_EQ(found->what(), name_of(mine) + ": rank 1 calls barrier in host memory, rank 0 runs it in " +
                                to_string(mine.memory) + " memory without comparing");
  }
}

TEST("the refusal of a peer is known before the operation begins here, and when it is passed") {
  OneRank rank(2);
  rank.come(1, 2, 0, "counts[0] = -1");
  CHECK(!rank.transport().refusal(OneRank::barrier(1)));
  const std::string why = "rank 1 does not take part, its arguments were refused there: counts[0] = -1";
  const auto next = rank.transport().refusal(OneRank::barrier(2));
  CHECK(next && next->code() == Code::mismatch && next->what() == "barrier #2: " + why);
  CHECK(!rank.transport().pass(OneRank::barrier(1)));
  const auto passed = rank.transport().pass(OneRank::barrier(2));
  CHECK(passed && passed->what() == "barrier #2: " + why);
}

TEST("an operation is not passed when a rank is gone, or the communicator broken") {
  OneRank rank(2);
  rank.post(1, MessageKind::left, 1);
  CHECK(!rank.transport().pass(OneRank::barrier(1)));  // the other rank has started it
  const auto lost = rank.transport().pass(OneRank::barrier(2));
  CHECK(lost && lost->code() == Code::peer_lost && std::string(lost->what()).starts_with("barrier #2: rank 0 waits"));
  rank.transport().abort("enough");
  const auto broken = rank.transport().pass(OneRank::barrier(3));
  CHECK(broken && broken->code() == Code::aborted);
}

}  // namespace
