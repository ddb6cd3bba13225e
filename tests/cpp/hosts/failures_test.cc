// Failures of a rank on several hosts: what its caller is told, and what the other hosts are.
#include "check.h"
#include "one_rank.h"

namespace {

using namespace a2a;
using namespace a2a::hosts;
using hosts_test::OneRank;

const Error kFull(Code::backend, "the disk is full");

// Returns the errors with which the rank told a peer that it gave up.
std::vector<std::string> reasons(OneRank& rank, Rank peer) {
  std::vector<std::string> texts;
  for (const auto& [prefix, text] : rank.told(peer, MessageKind::aborted)) {
    Reason why;
    std::memcpy(&why, text.data(), sizeof(why));
    texts.push_back(std::to_string(why.code) + " " + text.substr(sizeof(why)));
  }
  return texts;
}

TEST("the first failure is the one that all get, here and on the other hosts") {
  OneRank rank(3);
  const auto work = rank.start(1);
  rank.transport().fail(kFull);
  rank.transport().abort("too late");
  CHECK_THROWS(Code::backend, "the disk is full", work->wait());
  CHECK(rank.transport().failed());
  CHECK_EQ(rank.transport().broken()->what(), std::string("the disk is full"));
  CHECK_THROWS(Code::backend, "barrier #2: the communicator is broken: the disk is full", rank.start(2)->wait());
  const std::vector<std::string> once{std::to_string(static_cast<int>(Code::backend)) + " the disk is full"};
  for (const Rank peer : {1, 2}) CHECK_EQ(reasons(rank, peer), once);
}

TEST("the failure of another host breaks what is in flight, and its host tells the others") {
  OneRank rank(3);
  const auto work = rank.start(1);
  rank.give_up(2, Error(Code::timeout, "rank 2 has waited for long"));
  CHECK_THROWS(Code::timeout, "rank 2 has waited for long", work->wait());
  for (const Rank peer : {1, 2}) CHECK(reasons(rank, peer).empty());
  rank.transport().leave(Left::dropped);  // that host may have left before all have heard
  CHECK_EQ(reasons(rank, 1).size(), 1);
}

TEST("a rank that has left is missed by the operations that it did not start, and by no others") {
  OneRank rank(2);
  rank.post(1, MessageKind::left, 1);
  const auto first = rank.start(1);
  CHECK(!first->wait_until(Deadline::after_seconds(0.03)));  // its facts may come yet
  rank.come(1, 1);
  first->wait();
  CHECK(rank.transport().lost_peer().has_value() && !rank.transport().failed());
  CHECK_THROWS(Code::peer_lost,
               "barrier #2: rank 0 waits for a rank that has left this communicator: rank 1 (on another host): last "
               "operation barrier #1",
               rank.start(2)->wait());
}

TEST("a process that is gone is lost with what the network knows of it") {
  OneRank rank(3);
  CHECK(!rank.transport().lost_peer() && !rank.transport().peer_died());
  rank.hub().losses[2] = {Deadline::Clock::now(), "its connection was closed"};
  CHECK(rank.transport().peer_died());
  CHECK_EQ(rank.transport().lost_peer()->what(),
           std::string("rank 0 lost rank 2 (on another host): last operation none: its connection was closed"));
  CHECK_THROWS(Code::peer_lost, "barrier #1: rank 0 lost rank 2", rank.start(1)->wait());
  CHECK_EQ(reasons(rank, 1).size(), 1);
}

TEST("a process that ends after its rank has left has not died") {
  OneRank rank(2);
  rank.post(1, MessageKind::left, 0);
  CHECK(rank.transport().lost_peer().has_value());
  rank.hub().losses[1] = {Deadline::Clock::now(), "its connection was closed"};
  CHECK(!rank.transport().peer_died());
}

TEST("a timeout names the ranks that are missing, and those that have come") {
  OneRank rank(4);
  rank.come(2, 1);
  CHECK_THROWS(Code::timeout,
               "barrier #1: timeout on rank 0, which still waits for rank 1 (on another host): last operation none; "
               "rank 3 (on another host): last operation none; rank 2 has come",
               rank.start(1, 0.03)->wait());
}

TEST("a rank that leaves says which operation it has started last, and ends those in flight") {
  OneRank idle(2), busy(2);
  idle.come(1, 1);
  idle.start(1)->wait();
  idle.transport().leave(Left::dropped);
  idle.transport().leave(Left::dropped);
  const auto left = idle.told(1, MessageKind::left);
  CHECK(left.size() == 1 && left[0].first.number == 1);
  const auto work = busy.start(1);
  busy.transport().leave(Left::dropped);
  CHECK_THROWS(Code::aborted, "the communicator was let go", work->wait());
  CHECK(!reasons(busy, 1).empty());
}

}  // namespace
