#include "transport/hosts/host_map.h"

#include <algorithm>
#include <set>

#include "check.h"
#include "environment.h"

namespace {

using namespace a2a;
using namespace a2a::hosts;
using check::Variable;

// A bootstrap whose other ranks have said these strings. Notes what this rank says.
struct Said final : Bootstrap {
  explicit Said(std::vector<std::string> strings, Rank me) : all(std::move(strings)), rank(static_cast<size_t>(me)) {}
  std::vector<std::string> allgather(std::string_view mine, Deadline) override {
    if (rank < all.size()) all[rank] = mine;
    return all;
  }
  std::vector<std::string> all;
  size_t rank;
};

HostMap map_of(Rank rank, int size, Said& bootstrap) {
  return make_host_map(rank, size, bootstrap, Deadline::after_seconds(1));
}

// Returns what all ranks say while A2A_HOSTS has that value, refusals included.
std::vector<std::string> cards(int size, const char* hosts) {
  const Variable assigned("A2A_HOSTS", hosts);
  Said bootstrap(std::vector<std::string>(static_cast<size_t>(size)), 0);
  for (Rank rank = 0; rank < size; ++rank) {
    bootstrap.rank = static_cast<size_t>(rank);
    try {
      map_of(rank, size, bootstrap);
    } catch (const Error&) {  // the others have not said anything yet
    }
  }
  return bootstrap.all;
}

HostMap map_of(const char* hosts) {
  const auto size = static_cast<int>(std::ranges::count(std::string_view(hosts), ',')) + 1;
  Said bootstrap(cards(size, hosts), 0);
  const Variable assigned("A2A_HOSTS", hosts);
  return map_of(0, size, bootstrap);
}

TEST("ranks with one name share a host, and hosts are numbered in the order of their first ranks") {
  const HostMap map = map_of("b,a,b,c");
  CHECK_EQ(map.host, std::vector<int>({0, 1, 0, 2}));
  CHECK(map.ranks == std::vector<std::vector<Rank>>({{0, 2}, {1}, {3}}));
  CHECK_EQ(map.process, std::vector<Process>({0, 1, 2, 3}));
  CHECK(map.local_rank_of(2) == 1 && map.local_rank_of(3) == 0);
  CHECK_EQ(map.on_machine_of(3), 4);  // whatever A2A_HOSTS says of hosts
}

TEST("ranks of one machine and one network namespace share a host unless told otherwise") {
  Said bootstrap(cards(3, nullptr), 2);
  const Variable assigned("A2A_HOSTS", nullptr);
  CHECK_EQ(map_of(2, 3, bootstrap).hosts(), 1);
}

TEST("a list of hosts for another number of ranks is refused, and so is an empty name") {
  const auto refused = [](const char* hosts, const char* why) {
    const Variable assigned("A2A_HOSTS", hosts);
    Said bootstrap(std::vector<std::string>(3), 1);
    CHECK_THROWS(Code::invalid_argument, why, map_of(1, 3, bootstrap));
  };
  refused("a,b", "A2A_HOSTS=a,b names the hosts of 2 ranks, there are 3");
  refused("a,b,c,d", "names the hosts of 4 ranks, there are 3");
  refused("a,,c", "A2A_HOSTS=a,,c has an empty name");
  refused(("a," + std::string(100, 'b') + ",c").c_str(), "is too long");
}

TEST("the others learn why a rank cannot join") {
  Said bootstrap(cards(2, "a,b"), 1);
  {
    const Variable wrong("A2A_HOSTS", "a");
    CHECK_THROWS(Code::invalid_argument, "the hosts of 1 ranks", map_of(1, 2, bootstrap));
  }
  const Variable right("A2A_HOSTS", "a,b");
  bootstrap.rank = 0;
  CHECK_THROWS(Code::mismatch, "rank 1 cannot join: A2A_HOSTS=a names the hosts of 1 ranks", map_of(0, 2, bootstrap));
}

TEST("a bootstrap of other ranks than those of the group is refused") {
  const Variable assigned("A2A_HOSTS", "a,b,c");
  const auto three = cards(3, "a,b,c");
  Said two({three[0], three[1]}, 0), swapped({"", three[2], three[1]}, 0), strange({"", three[1], "hello"}, 0);
  CHECK_THROWS(Code::invalid_argument, "the bootstrap has 2 ranks, but this is rank 0 of 3", map_of(0, 3, two));
  CHECK_THROWS(Code::mismatch, "rank 1 of the bootstrap was started as rank 2", map_of(0, 3, swapped));
  CHECK_THROWS(Code::unsupported, "rank 2 runs another version of this library", map_of(0, 3, strange));
}

TEST("all ranks take the limits of rank 0") {
  const Variable own("A2A_AGGREGATE_MAX", "100");
  auto all = cards(2, "a,b");
  const Variable other("A2A_AGGREGATE_MAX", "200"), assigned("A2A_HOSTS", "a,b");
  Said bootstrap(std::move(all), 1);
  CHECK_EQ(map_of(1, 2, bootstrap).limits.aggregate, 100);
}

TEST("the ranks of a host take turns in sending and receiving for it, and none does both") {
  const HostMap map = map_of("a,a,a,b");
  std::set<Rank> senders, receivers;
  for (uint64_t number = 5; number < 8; ++number) {
    const Rank sender = map.sender_of(0, 1, number), receiver = map.receiver_of(0, 1, number);
    CHECK(sender != receiver);
    senders.insert(sender), receivers.insert(receiver);
    CHECK(map.sender_of(1, 0, number) == 3 && map.receiver_of(1, 0, number) == 3);
  }
  CHECK(senders == std::set<Rank>({0, 1, 2}) && receivers == senders);
}

TEST("a part of the ranks keeps its processes, and its hosts are numbered anew") {
  HostMap map = map_of("a,b,c,b");
  map.limits.aggregate = 42;
  map.machine = {5, 6, 7, 6};
  const HostMap part = map.of(std::vector<Rank>{3, 2, 1});
  CHECK_EQ(part.host, std::vector<int>({0, 1, 0}));
  CHECK(part.ranks == std::vector<std::vector<Rank>>({{0, 2}, {1}}));
  CHECK_EQ(part.process, std::vector<Process>({3, 2, 1}));
  CHECK_EQ(part.machine, std::vector<int>({6, 7, 6}));
  CHECK_EQ(part.limits.aggregate, 42);
}

}  // namespace
