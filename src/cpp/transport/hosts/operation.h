// One operation of a group with ranks on several hosts.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "a2a/work.h"
#include "transport/hosts/remote_exchange.h"
#include "transport/shm/exchange.h"

namespace a2a::hosts {

class Operation final : public Work {
  const Batch batch_;  // first: `remote` refers to it

 public:
  Operation(Batch batch, std::shared_ptr<Progress> progress, Rank rank, std::shared_ptr<const Places> places,
            std::shared_ptr<Network> network);

  // Work
  bool done() override;
  bool wait_until(Deadline deadline) override;
  bool arrived(Rank rank) override;
  bool let_go() override;

  const Batch& batch() const { return batch_; }
  uint64_t number() const { return batch_.signature.number; }
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  // The batch for the ranks of this host, by their places on it.
  Batch local_batch() const;
  // Whether this host relays it, once this is known.
  std::optional<bool> host_relays() const { return local == nullptr ? std::nullopt : local->remarked(); }

  // The following want the progress mutex held.
  void finish(std::optional<Error> error);
  void fail(const Error& error);
  // When the exchange on this host is over. Throws what broke it.
  void settle_local();
  // After that: what this rank disagrees about with others, on this host and elsewhere.
  std::string quarrels() const;

  std::shared_ptr<shm::Exchange> local;
  RemoteExchange remote;
  bool posted = false;        // the other hosts were told
  unsigned steps = 0;         // that were taken while it was the oldest
  bool relayed = false;       // through the relay
  bool judged = false;        // the verdict of this rank is out
  std::set<Rank> verdicts;    // whose have come
  std::string their_quarrel;  // the first in a verdict

 private:
  const std::shared_ptr<Progress> progress_;
  const Rank rank_;
  const std::shared_ptr<const Places> places_;
  const std::shared_ptr<Network> network_;
  bool local_settled_ = false;
  std::string local_quarrel_;
  std::optional<Error> error_;  // written before finished_
  std::atomic<bool> finished_{false};
};

// Keeps an operation until the network has let go of its memory.
void keep(std::shared_ptr<Operation> operation);

}  // namespace a2a::hosts
