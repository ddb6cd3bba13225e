#include "transport/hosts/stage_run.h"

#include <array>
#include <vector>

#include "check.h"

namespace {

using namespace a2a;
using hosts::HostMap;

constexpr DType kInt32{0, 32, 1};

// Ranks 0 and 2 are on the first host, 1 and 3 on the second.
HostMap two_hosts(std::vector<int> machines) {
  HostMap map;
  static_cast<Topology&>(map) = Topology({0, 1, 0, 1});
  map.process = {0, 1, 2, 3};
  map.machine = std::move(machines);
  return map;
}

}  // namespace

TEST("the exchange on one host knows what takes up the caches meanwhile") {
  std::vector<std::byte> memory(1000);
  Batch batch;
  batch.sends = {{0, memory.data(), 1}, {1, memory.data(), 20}, {1, memory.data(), 300}, {2, memory.data(), 4}};
  batch.recvs = {{0, memory.data(), 5}, {2, memory.data(), 4}, {3, memory.data(), 600}};
  Scratch scratch;
  const auto here = [&](std::vector<int> machines) {
    auto runs = stage_runs(batch, 2, two_hosts(std::move(machines)), scratch);
    CHECK(runs.size() == 1 && runs[0].on_host && runs[0].on_network && runs[0].as_batch && runs[0].folds.empty());
    return std::move(runs[0].here);
  };
  const Batch local = here({0, 1, 0, 1}), on_one_machine = here({0, 0, 0, 0});
  CHECK_EQ(local.sent_elsewhere, 2 * 320);
  CHECK_EQ(local.received_elsewhere, 2 * 600);
  CHECK_EQ(on_one_machine.sent_elsewhere, 5 + 4 * 320);
  CHECK_EQ(on_one_machine.received_elsewhere, 9 + 4 * 600);
  CHECK(local.last && local.stage == 0);
  CHECK(local.sends.size() == 2 && local.sends[0].peer == 0 && local.sends[1].peer == 1 && local.sends[1].bytes == 4);
  CHECK(local.recvs.size() == 2 && local.recvs[1].peer == 1 && local.recvs[0].bytes == 5);
}

TEST("parts of a fold arrive in memory of their own, and the fold takes them in the order of its parts") {
  std::array<int32_t, 2> output{-1, -1};
  auto* const to = reinterpret_cast<std::byte*>(output.data());
  Batch batch;
  batch.signature.dtype = kInt32;
  batch.signature.fold = Fold::sum;
  batch.folds = true;
  for (Rank rank = 0; rank < 4; ++rank) batch.recvs.push_back({rank, to, sizeof(output)});
  batch.parts = {{{0, 2}, 2}, {{1, 3}, 2}};
  Scratch scratch;
  auto runs = stage_runs(batch, 2, two_hosts({0, 1, 0, 1}), scratch);
  CHECK(runs.size() == 1 && !runs[0].as_batch && runs[0].folds.size() == 1);
  auto& here = runs[0].here.recvs;
  auto& between = runs[0].between.recvs;
  CHECK(here.size() == 2 && here[0].data == here[1].data && here[0].data != to && here[0].bytes == sizeof(output));
  CHECK(between.size() == 2 && between[0].peer == 1 && between[1].peer == 3 && between[0].data != between[1].data);
  const auto fill = [](const Run& run, int32_t a, int32_t b) {
    auto* const words = reinterpret_cast<int32_t*>(run.data);
    words[0] = a, words[1] = b;
  };
  fill(here[0], 1, 2), fill(between[0], 10, 20), fill(between[1], 100, 200);
  while (!runs[0].folds[0].step()) {
  }
  CHECK(output[0] == 111 && output[1] == 222);
}

TEST("exchanges on a host and between hosts are counted apart, and the last one on the host ends it there") {
  Batch batch;
  batch.reach = Reach::host;
  batch.later.resize(3);
  batch.later[0].reach = batch.later[1].reach = Reach::network;
  batch.later[2].reach = Reach::host;
  Scratch scratch;
  const auto runs = stage_runs(batch, 1, two_hosts({0, 1, 0, 1}), scratch);
  CHECK_EQ(runs.size(), 4);
  CHECK(!runs[0].on_network && !runs[1].on_host && !runs[2].on_host && !runs[3].on_network);
  CHECK(runs[0].here.stage == 0 && !runs[0].here.last && runs[3].here.stage == 1 && runs[3].here.last);
  CHECK(runs[1].between.stage == 0 && runs[2].between.stage == 1);
}
