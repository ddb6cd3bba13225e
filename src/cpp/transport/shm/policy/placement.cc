// A rank that waits yields, so the kernel takes it for busy: a CPU with three ranks and a CPU with one look equally
// loaded. The kernel balances them more slowly than an exchange takes, and an exchange takes as long as the most
// crowded CPU needs.
#include "transport/shm/policy/placement.h"

#include <sched.h>

#include <algorithm>
#include <array>

namespace a2a::shm {
namespace {

using RanksPerCpu = std::array<int, CPU_SETSIZE>;  // per CPU

// Returns the CPU that a rank runs on, or -1. Another process wrote the word, so its range is checked.
int cpu_of(const SeatWords* seat) {
  if (seat == nullptr) return -1;
  const uint32_t word = seat->cpu.load(std::memory_order_relaxed);
  return word <= CPU_SETSIZE ? static_cast<int>(word) - 1 : -1;
}

int emptiest(const cpu_set_t& allowed, const RanksPerCpu& ranks, int here) {
  int best = here;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed) && ranks[static_cast<size_t>(cpu)] < ranks[static_cast<size_t>(best)]) best = cpu;
  }
  return best;
}

}  // namespace

void announce_cpu(SeatWords& seat) {
  const auto word = static_cast<uint32_t>(::sched_getcpu() + 1);
  if (seat.cpu.load(std::memory_order_relaxed) != word) seat.cpu.store(word, std::memory_order_relaxed);
}

bool on_same_cpu(const SeatWords& a, const SeatWords& b) {
  const uint32_t word = a.cpu.load(std::memory_order_relaxed);
  return word != 0 && word == b.cpu.load(std::memory_order_relaxed);
}

bool spread(std::span<const SeatWords* const> seats, size_t rank) {
  const int here = cpu_of(seats[rank]);
  if (here < 0) return false;
  RanksPerCpu ranks{};
  for (const SeatWords* seat : seats) {
    if (const int cpu = cpu_of(seat); cpu >= 0) ++ranks[static_cast<size_t>(cpu)];
  }
  const auto is_here = [here](const SeatWords* seat) { return cpu_of(seat) == here; };
  if (ranks[static_cast<size_t>(here)] < 2 || std::ranges::any_of(seats.subspan(rank + 1), is_here)) return false;
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return false;
  const int target = emptiest(allowed, ranks, here);
  if (ranks[static_cast<size_t>(here)] - ranks[static_cast<size_t>(target)] < 2) return false;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(target, &only);
  if (::sched_setaffinity(0, sizeof(only), &only) != 0) return false;
  ::sched_setaffinity(0, sizeof(allowed), &allowed);
  return true;
}

}  // namespace a2a::shm
