// Rank 0 of several hosts, whose peers are the test: it posts messages in their names, and reads those of the rank.
#pragma once

#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "hosts.h"
#include "runtime/object_bytes.h"
#include "transport/hosts/hosts_transport.h"

namespace hosts_test {

using namespace a2a;
using namespace a2a::hosts;

// Each rank is on a host of its own.
inline HostMap apart(int size) {
  HostMap map;
  std::vector<int> numbers(static_cast<size_t>(size));
  std::iota(numbers.begin(), numbers.end(), 0);
  static_cast<Topology&>(map) = Topology(numbers);
  map.process = map.machine = numbers;
  return map;
}

// The other ranks of a group say what this one says.
struct Echo final : Bootstrap {
  explicit Echo(int n) : size(static_cast<size_t>(n)) {}
  std::vector<std::string> allgather(std::string_view mine, Deadline) override {
    said = mine;
    return std::vector<std::string>(size, said);
  }
  const size_t size;
  std::string said;
};

class OneRank {
 public:
  explicit OneRank(int size) : hub_(std::make_shared<Hub>(size)) {
    const Deadline soon = Deadline::after_seconds(20);
    base_ = shm::ShmTransport::connect(0, 1, *thread_bootstraps(1)[0], soon);
    Echo others(size);
    const auto network = std::make_shared<LoopbackNetwork>(hub_, 0);
    const Rank alone[] = {0};
    transport_ = HostsTransport::make(0, apart(size), network, others, *base_, alone, soon);
    std::memcpy(&channel_, others.said.data(), sizeof(channel_));  // the card begins with it
  }

  HostsTransport& transport() { return *transport_; }
  void end() { transport_.reset(); }
  Hub& hub() { return *hub_; }
  uint64_t channel() const { return channel_; }

  // Starts a barrier with that number.
  std::shared_ptr<Work> start(uint64_t number, double timeout = 5) {
    Batch batch;
    batch.signature = barrier(number);
    batch.deadline = Deadline::after_seconds(timeout);
    return transport_->start(std::move(batch));
  }
  static Signature barrier(uint64_t number) {
    Signature signature;
    signature.op = Op::barrier;
    signature.number = number;
    return signature;
  }

  // A message of a peer.
  void post(Rank from, MessageKind kind, uint64_t number, std::string_view rest = {}, uint16_t stage = 0) {
    post_bytes(from, message({channel_, kind, stage, from, number}, rest));
  }
  void post_bytes(Rank from, std::string bytes) { LoopbackNetwork(hub_, from).post(0, std::move(bytes)); }
  // A peer tells `target` that it has come to a barrier, or that it was refused there.
  void come(Rank from, uint64_t number, Rank target = 0, std::string_view refusal = {}) {
    Entry entry{from, target, {}, refusal};
    set_common(entry.facts, barrier(number));
    if (!refusal.empty()) entry.facts.delivery = Delivery::refused;
    std::string list;
    append(list, entry);
    post(from, MessageKind::facts, number, list);
  }
  void give_up(Rank from, const Error& error) {
    const Reason why{static_cast<uint32_t>(error.code()), 0};
    post(from, MessageKind::aborted, 0, std::string(object_bytes(why)) + error.what());
  }

  // Takes the messages of that kind which the rank has posted to a peer, and drops the others.
  std::vector<std::pair<Prefix, std::string>> told(Rank peer, MessageKind kind) {
    std::vector<std::pair<Prefix, std::string>> found;
    LoopbackNetwork end(hub_, peer);
    while (const auto message = end.take(channel_)) {
      const Prefix prefix = *prefix_of(message->bytes);
      if (prefix.kind == kind) found.emplace_back(prefix, std::string(rest_of(message->bytes)));
    }
    return found;
  }

 private:
  std::shared_ptr<Hub> hub_;
  std::unique_ptr<shm::ShmTransport> base_;
  std::unique_ptr<HostsTransport> transport_;
  uint64_t channel_ = 0;
};

}  // namespace hosts_test
