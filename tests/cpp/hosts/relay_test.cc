#include "transport/hosts/relay.h"

#include <array>
#include <functional>

#include "check.h"
#include "hosts.h"

namespace {

using namespace a2a;
using namespace a2a::hosts;

constexpr uint64_t kChannel = 5;
Deadline soon() { return Deadline::after_seconds(5); }

// Ranks 0 and 1 are on the first host, 2 and 3 on the second.
HostMap two_hosts() {
  HostMap map;
  static_cast<Topology&>(map) = Topology({0, 0, 1, 1});
  map.process = {0, 1, 2, 3};
  map.machine = {0, 0, 1, 1};
  map.relayed = relay_limit(map);
  return map;
}

Signature operation(uint64_t number) {
  Signature signature;
  signature.number = number;
  return signature;
}

std::string bundle(uint64_t number, const std::vector<Entry>& entries) {
  const Rank sender = two_hosts().sender_of(1, 0, number);
  std::string text = begin_message({kChannel, MessageKind::bundle, 0, sender, number}, 0);
  for (const Entry& entry : entries) append(text, entry);
  return text;
}

// A rank of the first host. The second host is the test.
struct OneRank {
  OneRank(Rank rank, const std::shared_ptr<hosts_test::Hub>& hub, Bootstrap& bootstrap)
      : network(std::make_shared<hosts_test::LoopbackNetwork>(hub, rank)) {
    auto gather = shm::ShmTransport::connect(rank, 2, bootstrap, soon());
    auto scatter = shm::ShmTransport::connect(rank, 2, bootstrap, soon());
    progress = gather->progress();
    const auto map = std::make_shared<const HostMap>(two_hosts());
    relay.emplace(rank, map, kChannel, network, std::move(gather), std::move(scatter));
  }

  void post(uint64_t number, const std::vector<Entry>& entries, bool relays) {
    const std::lock_guard lock(progress->mutex());
    relay->post(operation(number), entries, relays);
  }
  // Takes what comes, and advances the relay until that operation is finished.
  bool finish(uint64_t number, const Relay::Ask& ask = [](uint64_t) { return std::nullopt; }) {
    const auto step = [&] {
      while (auto message = network->take(kChannel)) {
        const Prefix prefix = *prefix_of(message->bytes);
        relay->take(prefix.number, prefix.source, std::move(message->bytes));
      }
      relay->advance(
          [&](uint64_t, const Entry& entry) {
            delivered.emplace_back(entry.source, entry.target, std::string(entry.payload));
          },
          ask, [&](uint64_t, Rank source, const std::string&) { unexpected.push_back(source); });
      return relay->finished(number);
    };
    return progress->wait(step, soon());
  }

  std::shared_ptr<hosts_test::LoopbackNetwork> network;
  std::shared_ptr<Progress> progress;
  std::optional<Relay> relay;
  std::vector<std::tuple<Rank, Rank, std::string>> delivered;
  std::vector<Rank> unexpected;
};

// Runs both ranks of the first host.
struct FirstHost {
  const HostMap map = two_hosts();
  const std::shared_ptr<hosts_test::Hub> hub = std::make_shared<hosts_test::Hub>(4);

  void run(const std::function<void(Rank, OneRank&)>& body) const {
    const auto bootstraps = thread_bootstraps(2);
    check::threads(2, [&](int rank) {
      Bootstrap& bootstrap = *bootstraps[static_cast<size_t>(rank)];
      OneRank one(rank, hub, bootstrap);
      body(rank, one);
      bootstrap.allgather("", soon());  // nobody leaves before the other has finished
    });
  }
  // The second host sends its bundle.
  void send(uint64_t number, const std::vector<Entry>& entries) const {
    hosts_test::LoopbackNetwork(hub, map.sender_of(1, 0, number))
        .post(map.receiver_of(0, 1, number), bundle(number, entries));
  }
};

TEST("the entries of all ranks of a host go to another host in one message, and reach the ranks they are for") {
  FirstHost host;
  const std::string large(host.map.relayed, 'x');
  for (const uint64_t number : {1, 2, 3}) host.send(number, {{2, 0, {}, "2 to 0"}, {3, 1, {}, large}});
  host.run([&](Rank rank, OneRank& one) {
    for (const uint64_t number : {1, 2, 3}) {
      const std::string text = std::to_string(rank) + " says";
      CHECK(one.relay->wants(number));
      one.post(number, {{rank, 2, {}, text}, {rank, 3, {}, large}}, true);
      CHECK(one.finish(number));
      CHECK(!one.relay->wants(number) && one.relay->served(number));
      CHECK(one.relay->leads(number));  // of two ranks one sends and one receives
      const auto expected = rank == 0 ? std::tuple<Rank, Rank, std::string>(2, 0, "2 to 0") : std::tuple(3, 1, large);
      CHECK(one.delivered.size() == number && one.delivered.back() == expected);
    }
  });
  size_t messages = 0;
  for (const Rank peer : {2, 3}) {
    hosts_test::LoopbackNetwork end(host.hub, peer);
    while (const auto message = end.take(kChannel)) {
      ++messages;
      const Prefix prefix = *prefix_of(message->bytes);
      CHECK(prefix.kind == MessageKind::bundle && peer == host.map.receiver_of(1, 0, prefix.number));
      CHECK_EQ(prefix.source, host.map.sender_of(0, 1, prefix.number));
      const auto entries = entries_of(rest_of(message->bytes));
      CHECK(entries && entries->size() == 4);
    }
  }
  CHECK_EQ(messages, 3);
}

TEST("an operation without entries sends nothing, and the bundle of a host that has some is unexpected") {
  FirstHost host;
  host.send(1, {{2, 0, {}, "2 to 0"}});
  host.run([&](Rank rank, OneRank& one) {
    one.post(1, {}, false);
    CHECK(one.finish(1, [](uint64_t) { return false; }));
    CHECK(one.delivered.empty() && !one.relay->wants(1));
    const bool receives = rank == host.map.receiver_of(0, 1, 1);
    CHECK_EQ(one.unexpected, receives ? std::vector{host.map.sender_of(1, 0, 1)} : std::vector<Rank>());
    one.relay->pass(operation(2));  // the same of one that runs on a device
    CHECK(one.finish(2));
  });
  for (const Rank peer : {2, 3}) CHECK(!hosts_test::LoopbackNetwork(host.hub, peer).take(kChannel));
}

TEST("a host without a bundle lets the ranks that wait for one go on") {
  FirstHost host;
  const Rank from = host.map.receiver_of(1, 0, 1);  // which has got the bundle of this host
  hosts_test::LoopbackNetwork(host.hub, from)
      .post(host.map.receiver_of(0, 1, 1), message({kChannel, MessageKind::no_bundle, 0, from, 1}));
  host.run([](Rank rank, OneRank& one) {
    one.post(1, {{rank, 2, {}, "hello"}}, true);
    CHECK(one.finish(1) && one.delivered.empty());
  });
}

TEST("a bundle that no host would send is refused") {
  const std::string good = bundle(1, {{2, 0, {}, "2 to 0"}});
  const std::vector<std::string> bundles{bundle(1, {{2, 3, {}, ""}}), bundle(1, {{2, 9, {}, ""}}),
                                         good.substr(0, good.size() - 1)};
  for (const std::string& bad : bundles) {
    FirstHost host;
    hosts_test::LoopbackNetwork(host.hub, 2).post(host.map.receiver_of(0, 1, 1), bad);
    host.run([&](Rank rank, OneRank& one) {
      one.post(1, {{rank, 2, {}, "hello"}}, true);
      if (rank != host.map.receiver_of(0, 1, 1)) return;
      CHECK_THROWS(Code::backend, "loopback: a bundle of entries makes no sense", one.finish(1));
    });
  }
}

TEST("what breaks the relay ends the wait of a rank with that error") {
  FirstHost().run([](Rank rank, OneRank& one) {
    one.post(1, {{rank, 2, {}, "hello"}}, true);
    {
      const std::lock_guard lock(one.progress->mutex());
      one.relay->fail(Error(Code::backend, "the disk is full"));
    }
    CHECK_THROWS(Code::backend, "the disk is full", one.finish(1));
  });
}

TEST("fewer bytes of a pair are relayed in larger groups, and none where each rank has a host of its own") {
  const auto limit = [](size_t ranks, size_t hosts, uint32_t aggregate) {
    HostMap map;
    std::vector<int> numbers(ranks);
    for (size_t i = 0; i < ranks; ++i) numbers[i] = static_cast<int>(i % hosts);
    static_cast<Topology&>(map) = Topology(numbers);
    map.limits.aggregate = aggregate;
    return relay_limit(map);
  };
  CHECK_EQ(limit(4, 4, 8192), 0);
  CHECK_EQ(limit(4, 2, 8192), 8192);
  CHECK_EQ(limit(4, 2, 0), 0);
  const uint32_t of_many = limit(100, 2, 8192);
  CHECK(of_many > 0 && of_many < 8192 && of_many % 8 == 0 && 100 * room_for(of_many) <= size_t{128} << 10);
  CHECK_EQ(limit(5000, 2, 8192), 0);
}

}  // namespace
