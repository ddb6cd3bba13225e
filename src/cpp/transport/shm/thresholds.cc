#include "transport/shm/thresholds.h"

#include <algorithm>
#include <fstream>

#include "runtime/environment.h"

namespace a2a::shm {
namespace {

constexpr size_t kKiB = 1024, kMiB = kKiB * kKiB;

// Of one CPU. (sysconf() adds up the caches of a whole socket, of which a core may use a tenth; a virtual machine may
// say that the cache of its whole host is its own.)
size_t last_level_cache() {
  constexpr size_t kUsual = 32 * kMiB;
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");  // such as "32768K"
  size_t amount = 0;
  char unit = 0;
  if (!(file >> amount >> unit) || amount == 0) return kUsual;
  return std::min(kUsual, unit == 'M' ? amount * kMiB : unit == 'K' ? amount * kKiB : amount);
}

// How many CPUs share it.
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
  for (const char* const name : {"A2A_SHM_CMA", "A2A_SHM_PUT", "A2A_SHM_REP_MOVSB", "A2A_PROGRESS_THREAD"}) {
    switch_variable(name);
  }
  for (const char* const name : {"A2A_SHM_DIRECT_MIN", "A2A_SHM_CMA_MIN", "A2A_SHM_STREAM_MIN"}) bytes_variable(name);
}

Thresholds::Thresholds(const Surroundings& surroundings)
    : Thresholds(surroundings, last_level_cache() *
                                   static_cast<size_t>(std::max(1, surroundings.cpus / cpus_of_last_level_cache()))) {}

Thresholds::Thresholds(const Surroundings& surroundings, size_t cache)
    : ranks_(static_cast<size_t>(surroundings.ranks)),
      too_much_(cache / ranks_),
      shared_cpus_(surroundings.oversubscribed()),
      // Waiting for the receiver costs a turn of the scheduler where ranks share CPUs.
      direct_(bytes_variable("A2A_SHM_DIRECT_MIN").value_or((shared_cpus_ ? 16 : 8) * kKiB)),
      stream_otherwise_(cache / static_cast<size_t>(std::max(1, std::min(surroundings.ranks, surroundings.cpus)))),
      remote_given_(bytes_variable("A2A_SHM_CMA_MIN")),
      stream_given_(bytes_variable("A2A_SHM_STREAM_MIN")),
      put_given_(switch_variable("A2A_SHM_PUT")) {}

// Chunks that are all full cost a turn of the scheduler, too, each time they are: that is why the system call wins
// there from the size on that fills them, if it is fast here, and from another one on in any case. Wherever memory sets
// the pace it wins because it asks less of it. Both only where it has few pages to pin: from pages of 4 KiB it took 1.1
// to 1.5 times as long as chunks.
size_t Thresholds::remote_otherwise(bool too_much) const {
  if (too_much) return kLeastRemote;
  return shared_cpus_ ? 8 * kMiB : SIZE_MAX;
}

size_t Thresholds::remote(size_t room) const {
  if (remote_given_) return *remote_given_;
  const size_t equal_parts = std::max(kLeastRemote, too_much_ / ranks_);
  return std::min({remote_otherwise(false), equal_parts, remote_measured(room, kernel_copy_pays_from())});
}

}  // namespace a2a::shm
