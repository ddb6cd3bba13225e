// One operation of a group with ranks on several hosts.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "a2a/work.h"
#include "transport/hosts/received_sum.h"
#include "transport/hosts/remote_exchange.h"
#include "transport/hosts/stage_run.h"
#include "transport/shm/exchange.h"

namespace a2a::hosts {

class Operation final : public InFlight {
 public:
  // `stages` and `sum` are those of the batch, if it has a sum.
  Operation(Batch batch, std::vector<StageRun> stages, std::unique_ptr<ReceivedSum> sum,
            std::shared_ptr<Progress> progress, Rank rank, std::shared_ptr<const HostMap> map,
            std::shared_ptr<Network> network);

  // Work
  bool done() override;
  bool wait_until(Deadline deadline) override;
  bool arrived(Rank rank) override;
  bool let_go() override;

  const Batch& batch() const { return batch_; }
  uint64_t number() const { return batch_.signature.number; }
  // The step between hosts that it is in, or comes to next.
  uint64_t step() const { return step_of(number(), remote_stage_); }
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
  // Returns the exchange of this host's ranks in the stage, by local rank, if it has one that has not begun.
  std::optional<Batch> next_here();
  void begun_here(std::shared_ptr<shm::Exchange> exchange);
  // Whether all exchanges on this host have begun.
  bool all_begun_here() const { return left_here_ == 0; }
  // Whether the exchange of the stage on this host, if it has one, is over. Throws the error that broke it.
  bool settle_local();
  // Whether the stage has an exchange between hosts.
  bool on_network() const { return stage().on_network; }
  // Whether the ranks have compared their arguments, on this host and between hosts.
  bool compared() const;
  // Does a part of the remaining work of the stage. Returns whether all is done. Requires that all bytes have come and
  // nobody disagrees.
  bool conclude();
  // Begins the next stage. Returns false if there is none. Requires that this one is done.
  bool begin_next_stage();
  size_t stage_number() const { return stage_; }
  // Whether conclude() has work left that waits for nothing.
  bool concluding() const { return concluding_; }
  // Returns this rank's disagreements with ranks on this host and elsewhere. Requires settle_local().
  std::string disagreements() const;

  std::shared_ptr<shm::Exchange> local;  // the latest exchange on this host
  std::optional<RemoteExchange> remote;  // of the stage, or of the next one that has one
  bool posted = false;                   // its facts were sent to other hosts
  unsigned steps = 0;                    // taken while it was the oldest
  bool relayed = false;                  // its entries go through the relay
  bool judged = false;                   // this rank's verdict was sent
  std::set<Rank> verdicts;               // the ranks whose verdicts have come
  std::string their_disagreement;        // the first in a verdict

 private:
  const StageRun& stage() const { return stages_[stage_]; }
  StageRun& stage() { return stages_[stage_]; }
  void make_remote();
  bool conclude_step();
  bool fan_out();

  const Batch batch_;  // `remote` refers to these two
  std::vector<StageRun> stages_;
  const std::shared_ptr<Progress> progress_;
  const Rank rank_;
  const std::shared_ptr<const HostMap> map_;
  const std::shared_ptr<Network> network_;
  size_t stage_ = 0;
  uint8_t remote_stage_ = 0;  // of `remote`
  size_t left_here_ = 0;      // the exchanges on this host that have not begun
  bool begun_ = false;        // that of this stage has
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
