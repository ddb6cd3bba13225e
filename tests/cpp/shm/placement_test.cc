// Ranks that share a CPU.
#include "transport/shm/policy/placement.h"

#include <sched.h>

#include "check.h"

namespace {

using namespace a2a;
using namespace a2a::shm;

TEST("two ranks share a CPU when both have announced it") {
  SeatWords here{}, there{};
  CHECK(!on_same_cpu(here, there));  // no rank has announced a CPU
  announce_cpu(here);
  CHECK(!on_same_cpu(here, there));
  there.cpu = here.cpu.load();
  CHECK(on_same_cpu(here, there));
  there.cpu = here.cpu + 1;
  CHECK(!on_same_cpu(here, there));
}

TEST("ranks on one CPU move apart, and keep their affinity mask") {
  cpu_set_t before, after;
  if (!CHECK(sched_getaffinity(0, sizeof(before), &before) == 0)) return;
  SeatWords seats[4] = {};
  const SeatWords* const all[] = {&seats[0], &seats[1], &seats[2], &seats[3]};
  const auto crowd = [&seats](size_t ranks) {
    announce_cpu(seats[0]);
    for (size_t i = 0; i < 4; ++i) seats[i].cpu = i < ranks ? seats[0].cpu.load() : 0;
  };
  crowd(1);
  CHECK(!spread(all, 0));  // alone
  crowd(3);
  CHECK(!spread(all, 0));  // the last one moves, not this one
  CHECK(!spread(all, 3));  // its CPU is unknown
  seats[1].cpu = 0xFFFFFFFF;
  CHECK(!spread(all, 0));  // an invalid number of a peer is no rank's CPU
  const bool can_move = CPU_COUNT(&before) > 1;
  crowd(3);
  CHECK_EQ(spread(all, 2), can_move);
  announce_cpu(seats[2]);
  CHECK(!can_move || seats[2].cpu != seats[0].cpu);
  if (!CHECK(sched_getaffinity(0, sizeof(after), &after) == 0)) return;
  CHECK(CPU_EQUAL(&before, &after));
}

}  // namespace
