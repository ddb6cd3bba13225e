// From how many bytes on which way is taken.
#pragma once

#include <cstddef>
#include <optional>

#include "transport/shm/neighbour.h"

namespace a2a::shm {

class Thresholds {
 public:
  // With the environment's overrides. Throws Error(invalid_argument) when one is not a number.
  explicit Thresholds(const Surroundings& surroundings);

  // The receiver copies straight from the sender's memory, which saves one of two copies and costs the sender a wait:
  // bytes of a pair from shared memory or within one process (A2A_SHM_DIRECT_MIN), and bytes of a pair from private
  // memory with process_vm_readv (A2A_SHM_CMA_MIN). The first remote() that has to measure takes a few milliseconds.
  size_t direct() const { return direct_; }
  size_t remote() const;
  bool remote(size_t bytes) const { return bytes >= least_remote_ && bytes >= remote(); }

  // Bytes received by one rank in all: written past the caches (A2A_SHM_STREAM_MIN).
  size_t stream() const { return stream_; }

 private:
  size_t direct_, stream_;
  std::optional<size_t> remote_given_;
  size_t least_remote_, remote_otherwise_;
};

}  // namespace a2a::shm
