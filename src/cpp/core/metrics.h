// Counts of what the ranks of this process have done, which A2A_METRICS asks for. Not public.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/message.h"
#include "core/schedule.h"

namespace a2a {

// The counts of one rank on one communicator, and on all later ones of the same name and size. All functions are
// thread-safe.
class Metrics {
 public:
  // Returns nullptr unless A2A_METRICS is set.
  static std::shared_ptr<Metrics> open(Rank rank, int size, std::string_view label);

  Metrics(Rank rank, int size, std::string_view label)
      : rank_(rank), label_(label), peers_(static_cast<size_t>(size)) {}

  void begin(const Batch& batch);
  // An operation that was not begun here is ignored.
  void end(uint64_t number, bool failed);
  // A message that has ended.
  void add(const Message& message, Rank peer, uint64_t nanoseconds, bool failed);
  // The rank has waited so long for all of these.
  void waited(std::span<const Rank> ranks, uint64_t nanoseconds);

 private:
  friend std::string metrics_text();
  struct Calls {
    uint64_t started = 0, failed = 0, nanoseconds = 0;
  };
  struct Peer {
    uint64_t sent = 0, received = 0, waited = 0;
  };
  struct Begun {
    Op op;
    uint64_t since;
    bool asynchronous;
  };

  const Rank rank_;
  const std::string label_;
  std::mutex mutex_;
  std::map<Op, Calls> calls_;
  std::vector<Peer> peers_;
  std::map<uint64_t, Begun> in_flight_;  // by number; not more than kMostInFlight
};

}  // namespace a2a
