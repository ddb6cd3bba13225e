// One operation of the shared-memory transport in flight.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/facts.h"
#include "core/transport.h"
#include "transport/shm/copy.h"
#include "transport/shm/membership.h"
#include "transport/shm/pages.h"

namespace a2a::shm {

// The most a rank copies for one peer, or for itself, before it looks after the others, deadlines and aborts again.
inline constexpr size_t kCopyStep = size_t{4} << 20;
// A larger part of the rank's own is better copied before or after what a network moves than meanwhile.
inline constexpr size_t kOwnBeside = size_t{2} << 20;

// What this rank owes to, and still wants from, one peer in one operation. To itself only bytes are left.
struct alignas(kCacheLine) Pair {
  enum class Out : uint8_t { settled, streaming, unacknowledged, putting };
  enum class In : uint8_t { awaited, streaming, pulling, asking, expecting, arrived };

  // What every operation needs comes first, in three cache lines.
  Out out = Out::settled;
  In in = In::awaited;
  Head mine{};         // this rank's line: the facts, and how the bytes travel once that was decided
  Head theirs{};       // the peer's line, once it was seen
  size_t in_left = 0;  // bytes still to come
  Cursor source;       // what is left to stage of the sends
  Cursor target;       // what is left to fill of the receives

  uint64_t out_first = 0;   // the number of the first chunk staged
  uint64_t out_handed = 0;  // chunks staged
  uint64_t out_left = 0;    // chunks still to stage
  std::vector<Run> listed;  // the peer's runs, from which bytes are pulled or to which they are put
  Cursor remote;            // what is left of them

  // The bytes of the next chunk to stage.
  size_t next_out(size_t full) const { return out_left > 1 ? full : (mine.sent - 1) % full + 1; }

  void begin(const Head& common, std::span<const Run> sends, std::span<const Run> recvs) {
    out = Out::settled;
    in = In::awaited;
    mine = common;
    add_sizes(mine, sends, recvs);
    source = {sends};
    target = {recvs};
    in_left = 0;
    out_handed = 0;
  }
};

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

  const Batch& batch() const { return batch_; }
  uint64_t number() const { return batch_.signature.number; }
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
  Pair& pair(Rank peer) { return pairs_[static_cast<size_t>(peer)]; }
  const Pair& pair(Rank peer) const { return pairs_[static_cast<size_t>(peer)]; }

  bool only_unfinished(Rank peer) const;
  void copy_own();
  bool only_expects() const;
  bool own_in_place() const;
  bool peers_come_first(Membership& m) const;
  bool own_copied() const { return pair(rank_).in_left == 0; }
  bool is_too_much(const Membership& m) const;
  bool kernel_copy_pays(Membership& m, size_t bytes);
  bool waits_for_nothing(std::span<const Run> sends);
  bool copy_pays(Kind kind) const;
  void copy_for_all(Membership& m);
  void offer(Membership& m, Rank peer);
  Kind choose_kind(Membership& m, Rank peer);
  ListedRun* new_list(Membership& m, size_t entries);
  void describe_source(Membership& m, Rank peer, Kind kind);
  bool stage(Membership& m, Rank peer);
  void change_to_chunks(Membership& m, Rank peer);
  bool has_free_chunk(Membership& m, Rank peer);
  std::optional<uint8_t> stage_chunk(Membership& m, Rank peer);
  bool trade_chunks(Membership& m, Rank peer, uint8_t taken);
  void hand_over(Membership& m, Rank peer);
  void share_out(Membership& m, Rank peer);

  bool receive(Membership& m);
  bool take(Membership& m, Rank peer);
  bool open(Membership& m, Rank peer);
  void begin_pull(Membership& m, Rank peer, Kind kind);
  void find_runs(Membership& m, Rank peer, Kind kind, const ListedRun& run);
  void find_runs(Membership& m, Rank peer, Kind kind, uint64_t list, size_t count, uint64_t bytes);
  void add_run(Membership& m, Rank peer, Kind kind, const ListedRun& run);
  void begin_taking(Membership& m, Rank peer);
  void take_chunks(Membership& m, Rank peer);
  void copy_beside_own(Pair& from, size_t bytes);
  void pull(Membership& m, Rank peer);
  bool has_copied(Membership& m, Rank peer) const;
  void cannot_read(Membership& m, Rank peer, int error);
  void ask(Membership& m, Rank peer);
  void hear_answer(Membership& m, Rank peer);

  bool wants_puts(Membership& m, Rank peer);
  uint64_t invite(Membership& m, Rank peer);
  bool is_put(Rank peer) const;
  void begin_put(Membership& m, Rank peer);
  void put(Membership& m, Rank peer);

  void disagree(Membership& m, Rank peer);
  void give_up_pair(Membership& m, Rank peer);
  std::string quarrels() const;
  bool heard_all(Membership& m);
  void look_once_more(Membership& m);
  void finish(Membership& m);

  Batch batch_;
  std::shared_ptr<ShmProgress> progress_;
  Rank rank_;
  std::vector<Pair> pairs_;
  std::vector<Rank> awaited_;          // peers whose bytes are not all here
  std::vector<Rank> unsettled_;        // peers to which something is still staged or put, or that have not acknowledged
  size_t lists_ = 0;                   // how many lists of runs this operation has in the segment
  Run for_all_;                        // a copy in the segment of what goes to all peers alike, if there is one
  std::vector<std::string> quarrels_;  // disagreements with single peers
  std::optional<Error> error_;         // written before finished_
  size_t sent_bytes_ = 0;              // in all
  size_t received_bytes_ = 0;          // in all
  bool alike_ = false;                 // every rank gets the same
  bool too_much_ = false;              // for the caches, see Thresholds
  bool own_waits_ = false;             // this rank's own part, see Terms::own_last
  HugePages huge_pages_;               // in what is sent
  std::optional<bool> all_present_;    // see are_present(): what is sent
  Stores stores_ = Stores::cached;     // of what is received
  bool posted_ = false;
  bool received_ = false;  // `done` was published
  std::atomic<bool> finished_{false};
};

}  // namespace a2a::shm
