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
#include "transport/hosts/received_sum.h"
#include "transport/hosts/remote_exchange.h"
#include "transport/shm/exchange.h"

namespace a2a::hosts {

class Operation final : public InFlight {
  const Batch batch_;                     // first, because `remote` refers to these
  const std::unique_ptr<Course> course_;  // empty: the operation runs as the batch says

 public:
  // `sum` is that of the batch, if it has one.
  Operation(Batch batch, std::unique_ptr<Course> course, std::unique_ptr<ReceivedSum> sum,
            std::shared_ptr<Progress> progress, Rank rank, std::shared_ptr<const Places> places,
            std::shared_ptr<Network> network);

  // Work
  bool done() override;
  bool wait_until(Deadline deadline) override;
  bool arrived(Rank rank) override;
  bool let_go() override;

  const Batch& batch() const { return batch_; }
  uint64_t number() const { return batch_.signature.number; }
  // The step, as in shared memory: the second half of an operation is another step.
  uint64_t step() const { return is_second() ? shm::last_step(number()) : shm::first_step(number()); }
  bool is_second() const { return batch_.half == Half::second; }
  bool finished() const override { return finished_.load(std::memory_order_acquire); }
  std::string name() const override { return name_of(batch_.signature); }
  const Footprint& footprint();
  // What has to be finished before this begins, here and between hosts.
  Predecessors& predecessors() { return predecessors_; }
  const Predecessors& predecessors() const { return predecessors_; }
  // Whether that is finished. Then it packs what is sent, once.
  bool may_begin();
  // Whether this host relays it; nullopt until that is known.
  std::optional<bool> host_relays() const { return local == nullptr ? std::nullopt : local->any_flag(); }

  // The following require the progress mutex.
  void finish(std::optional<Error> error);
  void fail(const Error& error);
  // Returns the next exchange of this host's ranks, by seat. Returns nullopt when another step has to come first.
  std::optional<Batch> next_here();
  void begun_here(std::shared_ptr<shm::Exchange> exchange);
  // Whether all exchanges on this host have begun.
  bool all_begun_here() const { return next_ == Next::nothing; }
  // Whether the exchanges that have begun on this host are over. Throws the error that broke one.
  bool settle_local();
  // Whether the facts may be sent to other hosts.
  bool may_post();
  // Does a part of the remaining work. Returns whether all is done. Requires that all bytes have come and nobody
  // disagrees.
  bool conclude();
  // Whether conclude() has work left that waits for nothing.
  bool concluding() const { return concluding_; }
  // Returns this rank's disagreements with ranks on this host and elsewhere. Requires settle_local().
  std::string disagreements() const;
  const std::optional<Error>& error() const { return error_; }

  std::shared_ptr<shm::Exchange> local;  // the latest exchange on this host
  RemoteExchange remote;
  bool posted = false;             // the facts were sent to other hosts
  unsigned steps = 0;              // taken while it was the oldest
  bool relayed = false;            // its entries go through the relay
  bool judged = false;             // this rank's verdict was sent
  std::set<Rank> verdicts;         // the ranks whose verdicts have come
  std::string their_disagreement;  // the first in a verdict

 private:
  enum class Next : uint8_t { here, here_again, nothing };
  Batch batch_here() const;
  bool conclude_step();
  bool fan_out();

  const std::shared_ptr<Progress> progress_;
  const Rank rank_;
  const std::shared_ptr<const Places> places_;
  const std::shared_ptr<Network> network_;
  Next next_;              // the next exchange on this host
  bool all_here_ = false;  // all bytes have come from other hosts, and are folded, summed or copied
  const std::unique_ptr<ReceivedSum> sum_;
  bool packed_ = false;
  bool concluding_ = false;
  bool local_settled_ = false;
  std::string local_disagreement_;
  std::optional<Footprint> footprint_;  // made when it is asked for
  Predecessors predecessors_;
  std::optional<Error> error_;  // written before finished_
  std::atomic<bool> finished_{false};
};

// Keeps an operation for ever, because the network may still use its memory.
void keep(std::shared_ptr<Operation> operation);

}  // namespace a2a::hosts
