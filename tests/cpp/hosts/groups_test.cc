// Groups of ranks on several hosts: those made of them, and what only works on one host.
#include <algorithm>
#include <array>
#include <set>

#include "check.h"
#include "one_rank.h"

namespace {

using namespace a2a;
using namespace a2a::hosts;
using hosts_test::Echo;
using hosts_test::OneRank;

std::unique_ptr<Transport> derive(OneRank& rank, const std::vector<Rank>& members) {
  Echo others(static_cast<int>(members.size()));
  return rank.transport().derive(members, others, Deadline::after_seconds(5));
}

TEST("a group of ranks on other hosts has messages of its own, and knows its hosts") {
  OneRank rank(3);
  const auto group = derive(rank, {2, 0});
  CHECK(rank.transport().facts().hosts == 3 && group->facts().hosts == 2);
  CHECK_EQ(group->topology()->host, std::vector<int>({0, 1}));
  group->fail(Error(Code::backend, "the disk is full"));
  CHECK(group->failed() && !rank.transport().failed());
  for (const Rank peer : {1, 2}) CHECK(rank.told(peer, MessageKind::aborted).empty());
  const auto& inbox = rank.hub().inboxes;
  CHECK(inbox[1].empty() && inbox[2].size() == 1);
  for (const auto& message : inbox[2]) CHECK_EQ(prefix_of(message.bytes)->source, 1);  // this rank there
}

TEST("a group of ranks on one host needs no network") {
  OneRank rank(2);
  const auto alone = derive(rank, {0});
  CHECK(alone->topology() == nullptr && alone->facts().hosts == 1);
  CHECK_EQ(alone->ways(1).size() + 1, rank.transport().ways(1).size());
  CHECK_EQ(rank.transport().ways(1).back().reason, "the ranks live on several hosts");
}

TEST("a rank that drops its communicator tells those that shrink, and discards what others say of that") {
  OneRank rank(2);
  rank.hub().survives_deaths = true;
  const auto channels_of = [&](Process receiver) {
    std::set<uint64_t> channels;
    for (const auto& message : rank.hub().inboxes[static_cast<size_t>(receiver)]) {
      channels.insert(prefix_of(message.bytes)->channel);
    }
    return channels;
  };
  rank.end();
  auto told = channels_of(1);
  CHECK_EQ(told.size(), 2u);  // it says that it has left, too
  told.erase(rank.channel());
  CHECK(std::ranges::includes(rank.hub().closed, told));
}

TEST("what needs the memory of one host, or a network that survives deaths, is refused") {
  OneRank rank(3);
  std::vector<Rank> members;
  CHECK_THROWS(Code::unsupported, "does not go on after the death of a rank",
               rank.transport().shrink(&members, Deadline::after_seconds(1)));
  const std::array<std::byte, 1> tensor{};
  CHECK_THROWS(Code::unsupported, "live on several hosts", rank.transport().expose(tensor.data(), 1, {1, 8, 1}, {}));
  CHECK(!rank.transport().failed());
}

}  // namespace
