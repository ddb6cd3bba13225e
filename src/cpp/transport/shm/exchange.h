// One operation of the shared-memory transport in flight.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/facts.h"
#include "core/fan_out.h"
#include "core/transport.h"
#include "transport/shm/ways/ways.h"

namespace a2a::shm {

// A larger own part is copied before or after the network's transfers, not beside them.
inline constexpr size_t kOwnBeside = size_t{2} << 20;
// States: queued -> posted (its lines are published) -> finished. All functions require the progress mutex, except
// finished() and those of Work.
class Exchange final : public InFlight {
 public:
  Exchange(std::shared_ptr<ShmProgress> progress, Rank rank, int size);

  // Starts the next operation. Call first, and again only when the operation is over and nobody holds it. Swaps the
  // batches, so that the caller gets lists with memory for the next one.
  void begin(Batch&& batch);

  // Work
  bool done() override;
  bool wait_until(Deadline deadline) override;
  bool wait_briefly() override;
  bool arrived(Rank rank) override;

  const Batch& batch() const { return operation_.batch; }
  uint64_t step() const { return operation_.step(); }
  bool posted() const { return posted_; }
  // Whether any rank has set its flag; nullopt until all lines were read.
  std::optional<bool> any_flag() const;
  // Whether the peers have all bytes of this rank.
  bool given() const { return posted_ && unsettled_.empty(); }
  // Whether some of its bytes are not in chunks yet, or may still have to go there because a peer cannot read this
  // rank's memory.
  bool streaming(Membership& m) const;
  bool finished() const override { return finished_.load(std::memory_order_acquire); }
  std::string name() const override { return name_of(operation_.batch.signature); }
  const Footprint& footprint();
  // What has to be finished before the lines are published.
  Predecessors& predecessors() { return predecessors_; }
  // Whether that is finished. Then it packs what is sent, once.
  bool may_begin();
  // See Terms::own_last.
  void let_own_go() { own_waits_ = false; }

  // Publishes this rank's lines if their slots are free at every peer. Returns whether it did.
  bool post(Membership& m);
  // Moves whatever can move. Returns whether anything did. Only the oldest operation of a communicator may advance.
  // Look at finished() afterwards.
  bool advance(Membership& m);
  // The error that it finished with, if any. Requires finished().
  const std::optional<Error>& error() const { return error_; }
  // Ends the operation with an error.
  void fail(Membership& m, const Error& error);
  // Whether this operation still needs something from that peer, so that it fails if the peer dies.
  bool needs(Membership& m, Rank peer) const;
  // Ends the pair if the peer has passed this operation without a line, because it runs it on a device without
  // comparing. If this rank compares, the peer counts as agreeing. Throws Error(aborted) if this rank refuses: that
  // comes too late.
  void look_for_pass(Membership& m, Rank peer);
  // Describes the peers that are missing, and lists those that have come: "rank 2 (pid 4711, alive): ...; ranks 0, 1
  // have come". Or names what has to be finished before.
  std::string missing(Membership& m) const;
  // The peers that are missing. Where all bytes are here, those that are still waiting for others.
  std::vector<Rank> absent(Membership& m) const;

 private:
  Pair& pair(Rank peer) { return operation_.pair(peer); }
  const Pair& pair(Rank peer) const { return operation_.pair(peer); }

  // Before the lines are out (post.cc).
  void copy_for_all(Membership& m);
  Choice choose(const Link& link);
  void offer(const Link& link);

  // Copies a part of this rank's own bytes.
  void copy_own();
  bool own_copied() const { return operation_.own().in_left == 0 && fanned_out(operation_.rank); }
  // Whether what has come from this rank was copied within the output, too.
  bool fanned_out(Rank source) const {
    return operation_.batch.fan_out == nullptr || operation_.batch.fan_out->done(source);
  }

  // While bytes move (advance.cc).
  bool receive(Membership& m);
  bool may_calculate() const;
  bool calculate(Membership& m);
  bool open(const Link& link);
  bool read_line(const Link& link);
  bool agrees(Rank peer) const;
  bool send(const Link& link);
  void disagree(const Link& link);
  void give_up_pair(const Link& link);

  // The end (exchange.cc).
  bool only_unfinished(Rank peer) const;
  std::string disagreements() const;
  bool knows_all(Membership& m);
  void look_once_more(Membership& m);
  void finish(Membership& m);
  void end(Membership& m);

  std::shared_ptr<ShmProgress> progress_;
  Operation operation_;
  std::vector<Rank> awaited_;    // peers whose bytes are not all here
  std::vector<Rank> unsettled_;  // peers that this rank still stages bytes for, or that have not acknowledged
  std::vector<std::string> disagreements_;  // disagreements with single peers
  std::optional<Footprint> footprint_;      // made when it is asked for
  Predecessors predecessors_;
  std::optional<Error> error_;  // written before finished_
  bool own_waits_ = false;      // see Terms::own_last
  bool packed_ = false;
  bool posted_ = false;
  bool received_ = false;  // `done` was published
  std::atomic<bool> finished_{false};
};

}  // namespace a2a::shm
