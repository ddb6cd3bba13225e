// From how many bytes on which way is taken.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>

#include "transport/shm/calibration.h"
#include "transport/shm/neighbour.h"

namespace a2a::shm {

// Throws Error(invalid_argument) when a variable of this transport makes no sense: before ranks meet, and not in the
// middle of an exchange, where some of them are read.
void check_variables();

class Thresholds {
 public:
  // With the environment's overrides. Throws Error(invalid_argument) when one is not a number. `cache` is the last
  // level before memory, in bytes, of all CPUs together; otherwise what this machine says of it.
  explicit Thresholds(const Surroundings& surroundings);
  Thresholds(const Surroundings& surroundings, size_t cache);

  // Whether the buffers of all ranks are twice what the cache holds, if this one, which sends and receives so many
  // bytes in all, has as much as they have on average. Then memory sets the pace.
  bool too_much(size_t sent, size_t received) const { return sent / 2 + received / 2 >= too_much_; }

  // The receiver copies straight from the sender's memory, which saves one of two copies and costs the sender a wait:
  // bytes of a pair from shared memory or within one process (A2A_SHM_DIRECT_MIN), and bytes of a pair from private
  // memory with process_vm_readv (A2A_SHM_CMA_MIN). `room` is that of the pair's chunks. Only when it matters whether
  // the memory lies in huge pages, and from where the kernel's copy pays without them, `huge` and `pays_from` are asked
  // for that.
  size_t direct() const { return direct_; }
  template <class Huge, class PaysFrom>
  bool remote(size_t bytes, size_t room, bool too_much, Huge&& huge, PaysFrom&& pays_from) const {
    if (remote_given_) return bytes >= *remote_given_;
    if (bytes >= remote_otherwise(too_much) && huge()) return true;
    return bytes >= remote_least(room) && bytes >= remote_measured(room, pays_from());
  }
  // Less never goes that way.
  size_t remote_at_least() const { return remote_given_.value_or(kLeastRemote); }
  // The same as a number of bytes, where all pairs exchange as many, from huge pages, with what this process measures,
  // which takes a few milliseconds the first time.
  size_t remote(size_t room) const;

  // Whether a receiver with memory in a peer's reach has the peer put its bytes there (A2A_SHM_PUT), rather than copy
  // them from the peer's memory itself. The lines of either side are in both CPUs' caches, so that who writes them has
  // to call them back: `rep movsb` does so without waiting for each, and the program's own stores do not.
  bool put() const { return put_given_.value_or(string_copies() >= StringCopies::faster_but_just_behind); }
  // The same for a rank that sends and receives so many bytes in all. While the buffers are no more than four times
  // what the cache holds, that is worth more than to leave what is received out of the cache.
  bool put(size_t sent, size_t received) const {
    const bool streams = stream_given_ ? received >= *stream_given_ : too_much(sent / 2, received / 2);
    return !streams && put();
  }

  // Whether bytes received by one rank in all are written past the caches, and from how many on they are where all
  // ranks receive as many (A2A_SHM_STREAM_MIN).
  bool stream(size_t received, bool too_much) const {
    return received >= stream_given_.value_or(too_much ? 0 : stream_otherwise_);
  }
  size_t stream() const { return stream_given_.value_or(too_much_); }

 private:
  static constexpr size_t kLeastRemote = size_t{32} << 10;  // less was not measured

  size_t remote_least(size_t room) const { return shared_cpus_ ? std::min(room, kLeastCalibrated) : kLeastCalibrated; }
  size_t remote_otherwise(bool too_much) const;
  size_t remote_measured(size_t room, size_t pays_from) const {
    return pays_from <= kLeastCalibrated ? remote_least(room) : pays_from;
  }

  size_t ranks_, too_much_;
  bool shared_cpus_;
  size_t direct_, stream_otherwise_;
  std::optional<size_t> remote_given_, stream_given_;
  std::optional<bool> put_given_;
};

}  // namespace a2a::shm
