#include "transport/shm/thresholds.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

namespace a2a::shm {
namespace {

constexpr size_t kKiB = 1024, kMiB = kKiB * kKiB;

std::optional<size_t> bytes_of(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  char* end = nullptr;
  const unsigned long long bytes = std::strtoull(text, &end, 10);
  if (end == text || *end != '\0' || *text == '-') {
    throw Error(Code::invalid_argument, std::string(name) + " = '" + text + "' is not a number of bytes");
  }
  return bytes;
}

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

}  // namespace

Thresholds::Thresholds(const Surroundings& surroundings) {
  shared_cpus_ = surroundings.oversubscribed();
  // Waiting for the receiver costs a turn of the scheduler where ranks share CPUs. So do chunks that are all full, each
  // time they are: that is why the system call wins there from the size on that fills them, if it is fast here, and
  // from another one on in any case.
  direct_ = bytes_of("A2A_SHM_DIRECT_MIN").value_or((shared_cpus_ ? 16 : 8) * kKiB);
  remote_given_ = bytes_of("A2A_SHM_CMA_MIN");
  remote_otherwise_ = shared_cpus_ ? 2 * kMiB : SIZE_MAX;
  const int at_once = std::max(1, std::min(surroundings.ranks, surroundings.cpus));
  stream_ = bytes_of("A2A_SHM_STREAM_MIN").value_or(last_level_cache() / static_cast<size_t>(at_once));
}

}  // namespace a2a::shm
