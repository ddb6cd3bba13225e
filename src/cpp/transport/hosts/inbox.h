// The messages that have come over a network and that nobody has taken yet, by channel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>

#include "transport/hosts/network.h"

namespace a2a::hosts {

// Only one thread at a time may call.
class Inbox {
 public:
  static constexpr size_t kMostUntaken = size_t{2} << 30;

  // Of a process that has sent more bytes than this, which nobody takes, nothing more is kept.
  explicit Inbox(size_t most_untaken = kMostUntaken) : most_untaken_(most_untaken) {}

  // Discards messages of closed channels, and those that name none: no process of a2a sends them.
  void deliver(Message message);
  std::optional<Message> take(uint64_t channel);
  void close(uint64_t channel) noexcept;
  bool has(uint64_t channel) const { return arrived_.contains(channel); }
  bool overrun(Process from) const;

 private:
  struct Sender {
    size_t untaken = 0;  // bytes
    bool overrun = false;
  };

  const size_t most_untaken_;
  std::map<uint64_t, std::deque<Message>> arrived_;
  std::set<uint64_t> closed_;
  std::map<Process, Sender> senders_;
};

}  // namespace a2a::hosts
