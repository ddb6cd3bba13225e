// One operation of a group with ranks on several hosts.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "a2a/work.h"
#include "transport/hosts/course.h"
#include "transport/hosts/remote_exchange.h"
#include "transport/shm/exchange.h"

namespace a2a::hosts {

class Operation final : public Work {
  const Batch batch_;                     // these first: `remote` refers to them
  const std::unique_ptr<Course> course_;  // empty: as the batch says

 public:
  Operation(Batch batch, std::unique_ptr<Course> course, std::shared_ptr<Progress> progress, Rank rank,
            std::shared_ptr<const Places> places, std::shared_ptr<Network> network);

  // Work
  bool done() override;
  bool wait_until(Deadline deadline) override;
  bool arrived(Rank rank) override;
  bool let_go() override;

  const Batch& batch() const { return batch_; }
  uint64_t number() const { return batch_.signature.number; }
  // As in shared memory: the second half of an operation is another step.
  uint64_t step() const { return is_second() ? shm::last_step(number()) : shm::first_step(number()); }
  bool is_second() const { return batch_.half == Half::second; }
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  // Whether this host relays it, once this is known.
  std::optional<bool> host_relays() const { return local == nullptr ? std::nullopt : local->remarked(); }

  // The following want the progress mutex held.
  void finish(std::optional<Error> error);
  void fail(const Error& error);
  // What the ranks of this host exchange next, by their places on it. Nothing where something else comes before.
  std::optional<Batch> next_here();
  void begun_here(std::shared_ptr<shm::Exchange> exchange);
  // Whether no exchange on this host is left to begin.
  bool all_begun_here() const { return next_ == Next::nothing; }
  // Whether what has begun on this host, if anything, is over. Throws what broke it.
  bool settle_local();
  // Whether it is time to tell other hosts.
  bool may_post();
  // When all has come that others send, and nobody disagrees: does a part of what follows. Whether nothing is left.
  bool conclude();
  // Whether that has begun, and goes on without anything having to come.
  bool concluding() const { return concluding_; }
  // After settle_local(): what this rank disagrees about with others, on this host and elsewhere.
  std::string quarrels() const;
  const std::optional<Error>& error() const { return error_; }

  std::shared_ptr<shm::Exchange> local;  // the latest on this host
  RemoteExchange remote;
  bool posted = false;        // the other hosts were told
  unsigned steps = 0;         // that were taken while it was the oldest
  bool relayed = false;       // through the relay
  bool judged = false;        // the verdict of this rank is out
  std::set<Rank> verdicts;    // whose have come
  std::string their_quarrel;  // the first in a verdict

 private:
  enum class Next : uint8_t { here, here_again, nothing };
  Batch batch_here() const;

  const std::shared_ptr<Progress> progress_;
  const Rank rank_;
  const std::shared_ptr<const Places> places_;
  const std::shared_ptr<Network> network_;
  Next next_;              // to begin on this host
  bool all_here_ = false;  // from other hosts, and folded
  bool concluding_ = false;
  bool local_settled_ = false;
  std::string local_quarrel_;
  std::optional<Error> error_;  // written before finished_
  std::atomic<bool> finished_{false};
};

// Keeps an operation until the network has let go of its memory.
void keep(std::shared_ptr<Operation> operation);

}  // namespace a2a::hosts
