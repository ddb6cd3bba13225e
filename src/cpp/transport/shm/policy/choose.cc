#include "transport/shm/policy/choose.h"

#include <algorithm>

#include "transport/shm/copy/calibration.h"

namespace a2a::shm {
namespace {

constexpr size_t kKiB = 1024, kMiB = kKiB * kKiB;
// Less never goes by the kernel's copy.
constexpr size_t kLeastCma = 32 * kKiB;

// Bytes of one rank, sent and received on average, from which on the buffers of all ranks are twice what the caches
// hold.
size_t share_of_caches(const Machine& machine) {
  return machine.cache / static_cast<size_t>(machine.surroundings.ranks);
}

bool exceed_caches(size_t sent, size_t received, const Machine& machine) {
  return sent / 2 + received / 2 >= share_of_caches(machine);
}

size_t cma_at_least(const Machine& machine) { return machine.cma_min.value_or(kLeastCma); }

// From how many bytes on the kernel's copy wins whatever it costs the CPU. Wherever memory sets the pace it asks less
// of it. Chunks that are all full cost a turn of the scheduler each time they are, where ranks share CPUs.
size_t cma_wins_from(bool exceeds, const Machine& machine) {
  if (exceeds) return kLeastCma;
  return machine.surroundings.oversubscribed() ? 8 * kMiB : SIZE_MAX;
}

// From how many bytes on it may win because it is measured to be the faster one. Where ranks share CPUs that is the
// size that fills the chunks.
size_t cma_may_win_from(const Machine& machine, size_t chunk_bytes) {
  return machine.surroundings.oversubscribed() ? std::min(chunk_bytes, kLeastCalibrated) : kLeastCalibrated;
}

// From how many bytes on it is, by that measurement.
size_t cma_measured_from(const Machine& machine, size_t chunk_bytes, size_t pays_from) {
  return pays_from > kLeastCalibrated ? pays_from : cma_may_win_from(machine, chunk_bytes);
}

// Of private memory: by the kernel or through chunks.
Choice choose_for_private_memory(const Route& route, const Load& load, const Machine& machine, Probe& probe) {
  if (route.bytes < cma_at_least(machine)) {
    return {Kind::staged, "private memory: two copies of so few bytes through chunks stay in the caches"};
  }
  if (!route.cma) return {Kind::staged, "private memory, and the kernel does not let the receiver read it"};
  const char* reason = "private memory: A2A_SHM_CMA_MIN asks for the kernel's copy";
  if (!machine.cma_min) {
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
  if (route.bytes >= direct_min(machine) && !(route.gaps && route.folds)) {
    if (route.same_process) return {Kind::pointer, "threads of one process: one copy from the sender's memory"};
    if (probe.in_segment()) return {Kind::shared, "shared memory: one copy from where the sender has it"};
  }
  if (route.gaps) return {Kind::staged, "memory with gaps: the sender packs it into chunks"};
  return choose_for_private_memory(route, load, machine, probe);
}

// What all peers get alike is one buffer, and stays in a cache for longer.
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

// The lines of either side are in both CPUs' caches, so that who writes them has to call them back: `rep movsb` does so
// without waiting for each, and the program's own stores do not. While the buffers are no more than four times what the
// cache holds, that is worth more than to leave what is received out of the cache.
bool choose_put(const Load& load, const Machine& machine, bool (*string_puts_pay)()) {
  const size_t sent = load.alike != 0 ? load.alike : load.sent;
  const bool streams =
      machine.stream_min ? load.received >= *machine.stream_min : exceed_caches(sent / 2, load.received / 2, machine);
  return !streams && (machine.put ? *machine.put : string_puts_pay());
}

// Writing the copy is dear, because its lines have to come back from the caches of those who read them last time. When
// all the copies do not fit into the caches, chunks and the kernel's copies win again.
bool copy_for_all_pays(Kind kind, size_t bytes, size_t ranks) {
  constexpr size_t kLeastSaved = 80 * kKiB, kMost = kMiB, kMostOfAll = 4 * kMiB;
  if (ranks < 4 || bytes * (ranks - 2) < kLeastSaved || bytes > kMost) return false;
  return kind == Kind::staged || (kind == Kind::cma && bytes * ranks <= kMostOfAll);
}

// In parts a rank waits for the others twice. That costs a turn of the scheduler more where ranks share CPUs.
size_t fold_at_once_max(const Machine& machine) { return (machine.surroundings.oversubscribed() ? 192 : 64) * kKiB; }

// Waiting for the receiver costs a turn of the scheduler where ranks share CPUs.
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
