// Ranks that a network connects already meet over it.
#include "transport/hosts/network_bootstrap.h"

#include "check.h"
#include "hosts.h"

namespace {

using namespace a2a;
using namespace a2a::hosts;

TEST("strings come back in the order of the ranks, round after round") {
  const auto hub = std::make_shared<hosts_test::Hub>(3);
  check::threads(3, [&](int rank) {
    NetworkBootstrap bootstrap(std::make_shared<hosts_test::LoopbackNetwork>(hub, rank), "meeting");
    CHECK(bootstrap.has_network());
    CHECK(bootstrap.group_rank()->rank == rank && bootstrap.group_rank()->size == 3);
    for (int round = 0; round < 20; ++round) {
      const auto text = [&](int of) { return std::string(static_cast<size_t>(of * round), 'x') + std::to_string(of); };
      const auto all = bootstrap.allgather(text(rank), Deadline::after_seconds(20));
      CHECK(all == std::vector<std::string>({text(0), text(1), text(2)}));
    }
  });
}

TEST("two meetings on one network do not mix") {
  const auto hub = std::make_shared<hosts_test::Hub>(2);
  check::threads(2, [&](int rank) {
    const auto network = std::make_shared<hosts_test::LoopbackNetwork>(hub, rank);
    NetworkBootstrap one(network, "one"), two(network, "two");
    NetworkBootstrap& first = rank == 0 ? one : two;
    NetworkBootstrap& second = rank == 0 ? two : one;
    std::vector<std::string> of_first, of_second;
    std::jthread other([&] { of_second = second.allgather(rank == 0 ? "two" : "one", Deadline::after_seconds(20)); });
    of_first = first.allgather(rank == 0 ? "one" : "two", Deadline::after_seconds(20));
    other.join();
    CHECK_EQ(of_first, std::vector<std::string>(2, rank == 0 ? "one" : "two"));
    CHECK_EQ(of_second, std::vector<std::string>(2, rank == 0 ? "two" : "one"));
  });
}

TEST("who is missing at the deadline is named") {
  const auto hub = std::make_shared<hosts_test::Hub>(3);
  NetworkBootstrap bootstrap(std::make_shared<hosts_test::LoopbackNetwork>(hub, 1), "meeting");
  CHECK_THROWS(Code::timeout, "missing: 0, 2", bootstrap.allgather("", Deadline::after_seconds(0.02)));
}

}  // namespace
