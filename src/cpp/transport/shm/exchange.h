// One operation of the shared-memory transport in flight.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/facts.h"
#include "core/transport.h"
#include "transport/shm/ways/ways.h"

namespace a2a::shm {

// A larger part of the rank's own is better copied before or after what a network moves than meanwhile.
inline constexpr size_t kOwnBeside = size_t{2} << 20;

// Life: queued -> posted (its lines are out) -> finished. Everything but finished() and the Work interface wants the
// progress mutex held.
class Exchange final : public Work {
 public:
  Exchange(std::shared_ptr<ShmProgress> progress, Rank rank, int size);

  // Before anything else, and once more whenever the operation is over and nobody holds it. Swaps the batches, so that
  // the caller gets lists with memory for the next one.
  void begin(Batch&& batch);

  // Work
  bool done() override;
  bool wait_until(Deadline deadline) override;
  bool wait_briefly() override;
  bool arrived(Rank rank) override;

  const Batch& batch() const { return operation_.batch; }
  uint64_t step() const { return operation_.step(); }
  bool posted() const { return posted_; }
  // Whether any rank has made its remark; nothing as long as not all lines were read.
  std::optional<bool> remarked() const;
  // Whether the peers have all that they get from this rank.
  bool given() const { return posted_ && unsettled_.empty(); }
  // Whether some of its bytes are not in their chunks yet, or may still have to go there: the peer has said that it
  // cannot read this rank's memory.
  bool streaming(Membership& m) const;
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  // See Terms::own_last.
  void let_own_go() { own_waits_ = false; }

  // Writes this rank's lines if their slots are free at every peer. Returns whether it did.
  bool post(Membership& m);
  // As the oldest operation of its communicator: moves whatever can move. Returns whether anything did. Afterwards
  // finished() may hold.
  bool advance(Membership& m);
  // What it ended with, once it is finished.
  const std::optional<Error>& error() const { return error_; }
  // Ends the operation with an error.
  void fail(Membership& m, const Error& error);
  // Whether something is still wanted from that peer, so that its death is this operation's failure.
  bool needs(Membership& m, Rank peer) const;
  // Looks whether the peer went past this operation without taking part, because it runs it on a device unchecked.
  // Where this rank compares, that peer is taken to agree. A refusal comes too late: throws Error(aborted).
  void look_for_pass(Membership& m, Rank peer);
  // "rank 2 (pid 4711, alive): ...; rank 3 ...; ranks 0, 1 have come": who is waited for, and who is not.
  std::string missing(Membership& m) const;

 private:
  Pair& pair(Rank peer) { return operation_.pair(peer); }
  const Pair& pair(Rank peer) const { return operation_.pair(peer); }

  // Before the lines are out (post.cc).
  void copy_for_all(Membership& m);
  Choice choose(const Link& link);
  void offer(const Link& link);

  bool own_copied() const { return operation_.own().in_left == 0; }

  // While bytes move (advance.cc).
  void copy_own();
  bool receive(Membership& m);
  bool open_all(Membership& m);
  void throw_if_pulled_from_aborted(Membership& m) const;
  bool fold(Membership& m);  // fold.cc
  bool fold_pieces(Membership& m);
  void fold_piece(size_t bytes);
  size_t next_piece(Membership& m);
  bool sum(Membership& m);  // sum.cc
  bool sum_pieces(Membership& m);
  bool drop_pieces(Membership& m);
  bool open(const Link& link);
  bool take(const Link& link);
  bool send(const Link& link);
  void disagree(const Link& link);
  void give_up_pair(const Link& link);

  // The end (exchange.cc).
  bool only_unfinished(Rank peer) const;
  std::string quarrels() const;
  bool heard_all(Membership& m);
  void look_once_more(Membership& m);
  void finish(Membership& m);

  std::shared_ptr<ShmProgress> progress_;
  Operation operation_;
  std::vector<Rank> awaited_;          // peers whose bytes are not all here
  std::vector<Rank> unsettled_;        // peers to which something is still staged or put, or that have not acknowledged
  std::vector<std::string> quarrels_;  // disagreements with single peers
  std::vector<const std::byte*> parts_;  // of a reduction, by rank: the next piece
  std::optional<Error> error_;           // written before finished_
  bool own_waits_ = false;               // this rank's own part, see Terms::own_last
  bool posted_ = false;
  bool received_ = false;  // `done` was published
  std::atomic<bool> finished_{false};
};

}  // namespace a2a::shm
