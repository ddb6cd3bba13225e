// From how many bytes on which way is taken.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>

#include "transport/shm/calibration.h"
#include "transport/shm/neighbour.h"

namespace a2a::shm {

class Thresholds {
 public:
  // With the environment's overrides. Throws Error(invalid_argument) when one is not a number.
  explicit Thresholds(const Surroundings& surroundings);

  // The receiver copies straight from the sender's memory, which saves one of two copies and costs the sender a wait:
  // bytes of a pair from shared memory or within one process (A2A_SHM_DIRECT_MIN), and bytes of a pair from private
  // memory with process_vm_readv (A2A_SHM_CMA_MIN). `room` is that of the pair's chunks. Only when it matters from
  // where the kernel's copy pays, `pays_from` is asked for that.
  size_t direct() const { return direct_; }
  template <class PaysFrom>
  bool remote(size_t bytes, size_t room, PaysFrom&& pays_from) const {
    const bool decided = remote_given_ || bytes < remote_least(room) || bytes >= remote_otherwise_;
    return bytes >= remote_from(room, decided ? 0 : pays_from());
  }
  // The same as a number of bytes, with what this process measures, which takes a few milliseconds the first time.
  size_t remote(size_t room) const { return remote_from(room, remote_given_ ? 0 : kernel_copy_pays_from()); }

  // Bytes received by one rank in all: written past the caches (A2A_SHM_STREAM_MIN).
  size_t stream() const { return stream_; }

 private:
  size_t remote_least(size_t room) const { return shared_cpus_ ? std::min(room, kLeastCalibrated) : kLeastCalibrated; }
  size_t remote_from(size_t room, size_t pays_from) const {
    if (remote_given_) return *remote_given_;
    return std::min(remote_otherwise_, pays_from <= kLeastCalibrated ? remote_least(room) : pays_from);
  }

  bool shared_cpus_;
  size_t direct_, stream_;
  std::optional<size_t> remote_given_;
  size_t remote_otherwise_;
};

}  // namespace a2a::shm
