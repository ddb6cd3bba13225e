#include "transport/shm/policy/choose.h"

#include <algorithm>

#include "transport/shm/copy/calibration.h"

namespace a2a::shm {
namespace {

// CMA is never chosen for fewer bytes.
constexpr size_t kLeastCma = 32 * kKiB;

// The mean of the bytes that one rank sends and receives from which on the buffers of all ranks are twice the size of
// the caches.
size_t share_of_caches(const Machine& machine) {
  return machine.cache / static_cast<size_t>(machine.surroundings.ranks);
}

bool exceed_caches(size_t sent, size_t received, const Machine& machine) {
  return sent / 2 + received / 2 >= share_of_caches(machine);
}

size_t cma_at_least(const Machine& machine) { return machine.cma_min.value_or(kLeastCma); }

// From this many bytes on CMA is chosen without a measurement. A memory-bound exchange gains because CMA moves each
// byte once. Where ranks share CPUs, a sender whose chunks are all full waits for a turn of the scheduler.
size_t cma_wins_from(bool exceeds, const Machine& machine) {
  if (exceeds) return kLeastCma;
  return machine.surroundings.oversubscribed() ? 8 * kMiB : SIZE_MAX;
}

// From this many bytes on CMA is compared by measurement. Where ranks share CPUs that is the size that fills the
// chunks.
size_t cma_may_win_from(const Machine& machine, size_t chunk_bytes) {
  return machine.surroundings.oversubscribed() ? std::min(chunk_bytes, kLeastCalibrated) : kLeastCalibrated;
}

// From this many bytes on the measurement favours CMA.
size_t cma_measured_from(const Machine& machine, size_t chunk_bytes, size_t pays_from) {
  return pays_from > kLeastCalibrated ? pays_from : cma_may_win_from(machine, chunk_bytes);
}

// Chooses between CMA and chunks for private memory.
Choice choose_for_private_memory(const Route& route, const Load& load, const Machine& machine, Probe& probe) {
  if (route.bytes < cma_at_least(machine)) {
    return {Kind::staged, "private memory: two copies of so few bytes through chunks stay in the caches"};
  }
  if (!route.cma) return {Kind::staged, "private memory, and the kernel does not let the receiver read it"};
  const char* reason = "private memory: A2A_SHM_CMA_MIN asks for the kernel's copy";
  if (!machine.cma_min && route.message) {
    reason = "private memory: the receiver copies while the sender goes on";
  } else if (!machine.cma_min) {
    const bool exceeds = exceeds_caches(load, machine);
    if (route.bytes >= cma_wins_from(exceeds, machine) && probe.in_huge_pages()) {
      reason = exceeds ? "private memory, too much for the caches: one copy by the kernel asks less of memory"
                       : "private memory and shared CPUs: one copy by the kernel waits for no turn of the scheduler";
    } else if (route.bytes >= cma_may_win_from(machine, route.chunk_bytes) &&
               route.bytes >= cma_measured_from(machine, route.chunk_bytes, probe.cma_pays_from())) {
      reason = "private memory: one copy by the kernel was measured to be faster than two through chunks";
    } else {
      return {Kind::staged, "private memory: two copies through chunks are faster than one by the kernel"};
    }
  }
  if (!probe.present()) return {Kind::staged, "private memory that is not all there: its owner takes the page faults"};
  return {Kind::cma, reason};
}

}  // namespace

Choice choose_way(const Route& route, const Load& load, const Machine& machine, Probe& probe) {
  if (route.bytes == 0) return {Kind::none, "there is nothing to send"};
  if (route.bytes <= route.inline_bytes) return {Kind::inlined, "fits into the line that tells of it"};
  if (route.bytes >= direct_min(machine) && !(route.gaps && (route.folds || route.message))) {
    if (route.same_process) return {Kind::pointer, "threads of one process: one copy from the sender's memory"};
    if (probe.in_segment()) return {Kind::shared, "shared memory: one copy from where the sender has it"};
  }
  if (route.gaps) return {Kind::staged, "memory with gaps: the sender packs it into chunks"};
  return choose_for_private_memory(route, load, machine, probe);
}

// A message moves between two ranks, so its bytes count as all that this rank sends.
Choice choose_way_of_message(const Route& route, EagerRoom room, const Machine& machine, Probe& probe) {
  if (route.bytes <= route.inline_bytes && room.header) return {Kind::inlined, "fits into the packet of its header"};
  if (route.bytes > 0 && route.bytes <= kMostEager && room.fragment) {
    return {Kind::staged, "so few bytes are copied at once, and their sender goes on"};
  }
  Route later = route;
  later.inline_bytes = 0;
  later.message = true;
  return choose_way(later, {route.bytes, 0, 0}, machine, probe);
}

// Bytes that all peers get alike are one buffer, which stays in a cache for longer.
bool exceeds_caches(const Load& load, const Machine& machine) {
  constexpr size_t kMostOfOne = 8 * kMiB;
  if (!exceed_caches(load.sent, load.received, machine)) return false;
  return load.alike == 0 || (load.alike >= kMostOfOne && exceed_caches(load.alike, load.received, machine));
}

Stores choose_stores(const Load& load, const Machine& machine) {
  const auto users = static_cast<size_t>(std::max(1, std::min(machine.surroundings.ranks, machine.surroundings.cpus)));
  const size_t otherwise = exceeds_caches(load, machine) ? 0 : machine.cache / users;
  return load.received >= machine.stream_min.value_or(otherwise) ? Stores::streaming : Stores::cached;
}

// The copy's lines have to come back from the readers' caches, so writing it costs more than one ordinary copy. When
// the copies exceed the caches, chunks and CMA are faster again.
bool copy_for_all_pays(Kind kind, size_t bytes, size_t ranks) {
  constexpr size_t kLeastSaved = 80 * kKiB, kMost = kMiB, kMostOfAll = 4 * kMiB;
  if (ranks < 4 || bytes * (ranks - 2) < kLeastSaved || bytes > kMost) return false;
  return kind == Kind::staged || (kind == Kind::cma && bytes * ranks <= kMostOfAll);
}

// With a fold in parts a rank waits for its peers twice. Where ranks share CPUs each wait costs a turn of the
// scheduler.
size_t fold_at_once_max(const Machine& machine) { return (machine.surroundings.oversubscribed() ? 192 : 64) * kKiB; }

// The sender waits for the receiver's copy. Where ranks share CPUs that costs a turn of the scheduler.
size_t direct_min(const Machine& machine) {
  return machine.direct_min.value_or((machine.surroundings.oversubscribed() ? 16 : 8) * kKiB);
}

size_t cma_min(const Machine& machine, size_t chunk_bytes, size_t pays_from) {
  if (machine.cma_min) return *machine.cma_min;
  const auto ranks = static_cast<size_t>(machine.surroundings.ranks);
  const size_t equal_parts = std::max(kLeastCma, share_of_caches(machine) / ranks);
  return std::min({cma_wins_from(false, machine), equal_parts, cma_measured_from(machine, chunk_bytes, pays_from)});
}

size_t stream_min(const Machine& machine) { return machine.stream_min.value_or(share_of_caches(machine)); }

}  // namespace a2a::shm
