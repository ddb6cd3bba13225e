// The network between hosts over UCX.
//
// UCX knows neither secrets nor who sends: whoever has a worker's address may send to it. So the addresses travel over
// the bootstrap, and the first message of each process is a proof that it has taken part in the meeting. Tags have a
// key of their sender and receiver, which the meeting determines; what has another key is discarded.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "a2a/bootstrap.h"
#include "bootstrap/sha256.h"
#include "runtime/fork_guard.h"
#include "transport/hosts/inbox.h"
#include "transport/hosts/network.h"
#include "transport/ucx/doors.h"
#include "transport/ucx/worker.h"

namespace a2a::ucx {

using hosts::Message;
using hosts::Process;
using hosts::Transfer;

// What a tag is of.
enum class Kind : uint8_t { message = 0, memory = 1, ready = 2 };

class UcxNetwork final : public hosts::Network, public std::enable_shared_from_this<UcxNetwork> {
 public:
  UcxNetwork(Process self, std::unique_ptr<TagWorker> worker);
  ~UcxNetwork() override;

  // The two steps of connecting. join() takes the addresses of all processes, and the key that only they have.
  // joined() advances, and returns whether the proofs of all have come; missing() names the others.
  void join(const std::vector<std::string>& addresses, const Digest& key);
  bool joined();
  std::vector<Process> missing();
  // Call when all have joined: forked children do not keep connections alive.
  void keep_from_children(Doors doors) { sockets_.keep(std::move(doors)); }

  Process self() const override { return self_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  std::string name() const override { return name_; }
  bool survives_deaths() const override { return true; }
  bool serves_any_thread() const override { return true; }

  void post(Process to, std::string bytes) override;
  std::optional<Message> take(uint64_t channel) override;
  bool flushed() override;
  std::optional<hosts::Loss> lost(Process) override;
  void close(uint64_t channel) noexcept override;

  uint32_t next_tag(Process to) override;
  bool fresh(Process to, uint32_t tag) const override;
  std::unique_ptr<Transfer> send(Process to, uint32_t tag, std::span<const Run> runs) override;
  std::unique_ptr<Transfer> receive(Process from, uint32_t tag, std::span<const Run> runs) override;
  std::unique_ptr<Transfer> discard(Process from, uint32_t tag, size_t bytes) override;
  void advance() override;
  int events() override;

  uint64_t moved() const override { return moved_.load(std::memory_order_relaxed); }
  uint64_t sent() const override;

 private:
  friend class UcxTransfer;
  friend class Flight;
  friend class Sending;
  friend class Receiving;
  class Posted;
  class Arriving;

  // A process proves itself before anything else of it counts, and tells when it leaves.
  enum class State : uint8_t { unproven, here, left, failed };

  struct Peer {
    UcxNetwork* network = nullptr;
    Process process = 0;
    Endpoint* endpoint = nullptr;
    uint64_t key_to = 0, key_from = 0;  // of tags
    std::string proof_to, proof_from;
    State state = State::unproven;
    std::optional<hosts::Loss> loss;
    uint32_t tag = 0;  // the last tag for this process
  };

  Peer& peer(Process process) { return peers_[static_cast<size_t>(process)]; }
  bool reachable(Process process) { return peer(process).endpoint != nullptr && !peer(process).loss; }
  Tag tag_to(Process to, Kind kind, uint32_t tag) { return tag_of(peer(to).key_to, kind, tag); }
  Tag tag_from(Process from, Kind kind, uint32_t tag) { return tag_of(peer(from).key_from, kind, tag); }
  static Tag tag_of(uint64_t key, Kind kind, uint32_t tag) {
    return key << 34 | static_cast<uint64_t>(kind) << 32 | tag;
  }
  static void failed(void* peer, Endpoint*, Status status);

  // The following require the mutex.
  void progress();
  void receive_messages();
  void deliver(Process from, std::string bytes);
  void start_post(Process to, std::string bytes, Kind kind = Kind::message, uint32_t tag = 0);
  void say_goodbye() noexcept;

  mutable std::mutex mutex_;
  const ForkGuard home_;
  const Process self_;
  std::unique_ptr<TagWorker> worker_;
  KeptSockets sockets_;
  std::string name_;
  std::vector<Peer> peers_;                        // by process; does not grow after join()
  std::unordered_map<uint64_t, Process> senders_;  // by key of their tags
  size_t posted_ = 0;                              // messages that have not left
  hosts::Inbox inbox_;
  std::map<std::pair<Process, uint32_t>, unsigned>
      unused_ready_;  // by sender and tag: ready messages without a receive
  uint64_t sent_ = 0;
  std::atomic<uint64_t> moved_{0};
};

// For the texts of errors: returns what the environment tells UCX to use.
std::string settings();

// Collective over a bootstrap whose ranks all call it, or none. Returns nullptr on all ranks where UCX has no use
// somewhere, with the reasons in *why. `key` is of the job; `meanwhile` is called every few milliseconds.
std::shared_ptr<UcxNetwork> connect(Bootstrap& bootstrap, Rank rank, const Digest& key,
                                    const std::function<void()>& meanwhile, Deadline deadline, std::string* why);

}  // namespace a2a::ucx
