#include "transport/shm/thresholds.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

namespace a2a::shm {
namespace {

constexpr size_t kKiB = 1024, kMiB = kKiB * kKiB;
constexpr size_t kLeastRemote = 32 * kKiB;  // less was not measured

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

}  // namespace

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

Thresholds::Thresholds(const Surroundings& surroundings, size_t cache)
    : ranks_(static_cast<size_t>(surroundings.ranks)),
      too_much_(cache / ranks_),
      shared_cpus_(surroundings.oversubscribed()),
      // Waiting for the receiver costs a turn of the scheduler where ranks share CPUs.
      direct_(bytes_of("A2A_SHM_DIRECT_MIN").value_or((shared_cpus_ ? 16 : 8) * kKiB)),
      stream_otherwise_(cache / static_cast<size_t>(std::max(1, std::min(surroundings.ranks, surroundings.cpus)))),
      remote_given_(bytes_of("A2A_SHM_CMA_MIN")),
      stream_given_(bytes_of("A2A_SHM_STREAM_MIN")) {}

// Chunks that are all full cost a turn of the scheduler, too, each time they are: that is why the system call wins
// there from the size on that fills them, if it is fast here, and from another one on in any case. It asks less of the
// memory.
size_t Thresholds::remote_otherwise(bool too_much) const {
  if (!shared_cpus_) return SIZE_MAX;
  return too_much ? kLeastRemote : 2 * kMiB;
}

size_t Thresholds::remote(size_t room) const {
  if (remote_given_) return *remote_given_;
  const size_t from = remote_from(room, remote_otherwise(false), kernel_copy_pays_from());
  return shared_cpus_ ? std::min(from, std::max(kLeastRemote, too_much_ / ranks_)) : from;
}

}  // namespace a2a::shm
