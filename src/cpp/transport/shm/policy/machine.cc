#include "transport/shm/policy/machine.h"

#include <algorithm>
#include <fstream>

#include "runtime/environment.h"
#include "runtime/progress_thread.h"

namespace a2a::shm {
namespace {

// Returns the last-level cache of one CPU, in bytes. sysconf() sums the caches of a socket, more than one core can use.
// A virtual machine may report the cache of its whole host, hence the limit.
size_t last_level_cache() {
  constexpr size_t kUsual = 32 * kMiB;
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");  // such as "32768K"
  size_t amount = 0;
  char unit = 0;
  if (!(file >> amount >> unit) || amount == 0) return kUsual;
  return std::min(kUsual, unit == 'M' ? amount * kMiB : unit == 'K' ? amount * kKiB : amount);
}

// Returns how many CPUs share the last-level cache.
int cpus_of_last_level_cache() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list");  // such as "0-7,64-71"
  int count = 0;
  for (int first = 0; file >> first; file.get()) {
    int last = first;
    if (file.peek() == '-') file.get(), file >> last;
    count += last - first + 1;
  }
  return std::max(1, count);
}

}  // namespace

void check_variables() {
  for (const char* const name : {"A2A_SHM_CMA", "A2A_SHM_SPREAD"}) {
    switch_variable(name);
  }
  progress_thread_wish();
  for (const char* const name : {"A2A_SHM_DIRECT_MIN", "A2A_SHM_CMA_MIN", "A2A_SHM_STREAM_MIN"}) bytes_variable(name);
}

Machine Machine::here(const Surroundings& surroundings) {
  const auto caches = static_cast<size_t>(std::max(1, surroundings.cpus / cpus_of_last_level_cache()));
  return {.surroundings = surroundings,
          .cache = last_level_cache() * caches,
          .direct_min = bytes_variable("A2A_SHM_DIRECT_MIN"),
          .cma_min = bytes_variable("A2A_SHM_CMA_MIN"),
          .stream_min = bytes_variable("A2A_SHM_STREAM_MIN"),
          .spread = switch_variable("A2A_SHM_SPREAD").value_or(false)};
}

}  // namespace a2a::shm
