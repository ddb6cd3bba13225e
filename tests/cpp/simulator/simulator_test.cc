// The simulator delivers every byte once within its bound, for random traffic.
#include "a2a/simulator.h"

#include <map>
#include <random>
#include <utility>

#include "check.h"

namespace {

using namespace a2a;
using namespace a2a::simulator;

std::vector<uint64_t> random_traffic(int ranks, unsigned seed) {
  std::mt19937 random(seed);
  std::lognormal_distribution<double> draw(10, 2);
  std::vector<uint64_t> bytes(static_cast<size_t>(ranks) * static_cast<size_t>(ranks));
  for (uint64_t& one : bytes) one = random() % 4 == 0 ? 0 : static_cast<uint64_t>(draw(random));
  return bytes;
}

TEST("every byte once, and not before the bound") {
  for (const int ranks : {1, 2, 7, 40}) {
    for (const int each : {1, 3}) {
      const auto bytes = random_traffic(ranks, static_cast<unsigned>(ranks + each));
      uint64_t remote = 0;
      for (int i = 0; i < ranks * ranks; ++i) {
        if (i / ranks / each != i % ranks / each) remote += bytes[static_cast<size_t>(i)];
      }
      for (const auto ports : {Ports::single, Ports::shared}) {
        for (const auto schedule : {Schedule::rotation, Schedule::longest, Schedule::hierarchical}) {
          Cluster cluster;
          cluster.ranks = ranks, cluster.ranks_per_host = each;
          cluster.link = 1e6, cluster.memory = 1e7;
          cluster.ports = ports;
          const Outcome outcome = simulate(cluster, schedule, bytes, bytes.size());
          CHECK(outcome.seconds >= outcome.bound * (1 - 1e-3));
          uint64_t moved = 0;
          std::map<std::pair<int, int>, int> times;
          for (const auto& message : outcome.messages) {
            moved += message.bytes;
            CHECK(++times[std::pair(message.from, message.to)] == 1);
            CHECK(message.begin >= 0 && message.end > message.begin && message.end <= outcome.seconds * (1 + 1e-9));
          }
          CHECK(moved == remote);
        }
      }
    }
  }
}

TEST("what makes no sense is refused") {
  const std::vector<uint64_t> bytes(4);
  const auto refused = [&](auto change) {
    Cluster cluster;
    cluster.ranks = 2;
    change(cluster);
    try {
      simulate(cluster, Schedule::longest, bytes, 0);
      return false;
    } catch (const Error& error) {
      return error.code() == Code::invalid_argument;
    }
  };
  CHECK(!refused([](Cluster&) {}));
  CHECK(refused([](Cluster& c) { c.ranks = 3; }));
  CHECK(refused([](Cluster& c) { c.ranks = 0; }));
  CHECK(refused([](Cluster& c) { c.ranks_per_host = 0; }));
  CHECK(refused([](Cluster& c) { c.link = 0; }));
  CHECK(refused([](Cluster& c) { c.latency = -1; }));
}

}  // namespace
