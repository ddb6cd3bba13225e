// A rank's membership in one group: its own words, its peers' words, and the chunks between them. It knows no
// operation.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status_page.h"
#include "core/transport.h"
#include "transport/shm/peers/local_peer.h"
#include "transport/shm/peers/shm_progress.h"
#include "transport/shm/policy/machine.h"
#include "transport/shm/protocol/chunks.h"
#include "transport/shm/protocol/layout.h"
#include "transport/shm/protocol/protocol.h"

namespace a2a::shm {

struct Peer {
  std::shared_ptr<LocalPeer> host;  // its process and what this rank maps of it; empty for this rank itself
  Block block;
  uint64_t uid = 0;   // of the block
  uint64_t done = 0;  // the highest value of its `done` that this rank has read
  Chunks chunks;      // shared with it
};

class Membership {
 public:
  // A zeroed block of this process's segment. Unless a membership takes it over, its end publishes that this rank has
  // left.
  struct GiveBack {
    void operator()(std::byte* block) const noexcept;
  };
  using NewBlock = std::unique_ptr<std::byte, GiveBack>;
  static NewBlock new_block(ProcessMemory& memory, int size);
  // Publishes in a block, which peers may have taken into a new group, that this rank has left that group. The memory
  // is never used again, because peers may read it at any time.
  static void abandon(NewBlock block, Left how) noexcept;

  // `names` has the number of each rank in the texts of errors. It is empty where that is the rank in this group.
  Membership(Rank rank, NewBlock block, std::shared_ptr<ShmProgress> progress, Surroundings surroundings,
             std::vector<std::shared_ptr<LocalPeer>> local_peers, std::span<const uint64_t> blocks,
             std::vector<Rank> names = {});
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  Rank rank() const { return rank_; }
  int size() const { return size_; }
  // Returns a rank's number in the texts of errors: in a group over several hosts, its rank in the whole group.
  Rank name(Rank rank) const { return names_.empty() ? rank : names_[static_cast<size_t>(rank)]; }
  // Returns the rank with that name. Requires that it is on this host.
  Rank rank_named(Rank name) const;
  Peer& peer(Rank rank) { return peers_[static_cast<size_t>(rank)]; }
  const Block& block() const { return block_; }
  ShmProgress& progress() { return *progress_; }
  const std::shared_ptr<ShmProgress>& shared_progress() const { return progress_; }
  const Machine& machine() const { return machine_; }
  const Surroundings& surroundings() const { return machine_.surroundings; }
  Arena& arena() { return progress_->memory().arena(); }
  bool threads() const { return threads_; }

  // What this rank shows of its operations; nullptr: nothing.
  const std::shared_ptr<Status>& status() const { return status_; }
  void show_in(std::shared_ptr<Status> status) { status_ = std::move(status); }

  // Returns the number of bytes from which on CMA is faster. All ranks use the measurement of the lowest rank that has
  // one, because ranks with different answers would keep each other waiting.
  size_t cma_pays_from();

  // Returns the chunks shared with a peer. Allocates this rank's share the first time.
  Chunks& chunks_to_fill(Rank peer);

  // Returns room in this rank's segment for bytes that step n sends to all peers alike. Requires that the slots of the
  // step are free. Peers may read the room until they have finished the step; the next step with the same slots reuses
  // it. Returns nullptr when the segment is full.
  std::byte* room_for_all(uint64_t n, size_t bytes);
  // The same for the i-th list of runs of step n. Throws Error(backend) when the segment is full.
  std::byte* room_for_list(uint64_t n, size_t i, size_t bytes);

  // Allocates memory of this rank's segment that peers may read until they have left. Throws Error(backend) when the
  // segment is full.
  std::byte* allocate(size_t bytes);
  // Frees such memory. Requires that no peer reads it any more.
  void release(std::byte* memory) noexcept;

  // Whether the slot of step n is free at this peer.
  bool slot_free(Rank rank, uint64_t n) { return n <= kSlots || finished(rank, n - kSlots); }
  // Whether this peer has finished step n.
  bool finished(Rank rank, uint64_t n) {
    Peer& p = peer(rank);
    return p.done >= n || is_done(p.block.words(), n, &p.done);
  }

  // Publishes that this rank has finished an operation that moves no bytes through shared memory. Requires that all
  // earlier operations are finished.
  void publish_finished(const Signature& signature);

  // Where ranks share CPUs: moves the calling thread if another CPU has fewer ranks.
  void spread();
  // Whether a peer announced this rank's CPU last.
  bool beside_peer() const;

  // Wakes every peer that sleeps.
  void wake_sleepers();
  // Wakes this peer if it sleeps.
  void wake_sleeper(Rank rank);
  // Publishes that this rank has given up, and wakes all peers. Waits until no peer copies from its memory or to it.
  void post_abort(Code code, std::string_view text) noexcept;
  // Publishes that this rank has left, and why it was replaced, and wakes all peers.
  void leave(Left how, std::string_view why = {}) noexcept;

  // Throws the error with which a peer gave up, if it did. The operation must not succeed here then: the peer may have
  // changed its buffers while this rank read them.
  void throw_if_aborted(Rank peer);
  // Throws Error(backend) because a peer wrote something invalid.
  [[noreturn]] void nonsense(Rank peer, const char* what);

  // Waits until every peer has left or is gone, or the deadline passes.
  void await_departure(Deadline deadline);

  // Describes a peer: "rank 2 (pid 4711, alive): last operation allgather #7, not finished".
  std::string describe(Rank peer);

 private:
  bool may_copy(Rank rank, Deadline deadline);

  Rank rank_;
  int size_;
  Block block_;
  std::shared_ptr<ShmProgress> progress_;
  Machine machine_;
  std::vector<Peer> peers_;
  std::vector<Sleeper> sleepers_;  // of all peers
  std::vector<Rank> names_;
  std::shared_ptr<Status> status_;
  struct Room {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };
  void enlarge(Room& room, size_t bytes, size_t aside);
  std::array<Room, kSlots> for_all_;
  std::array<std::vector<Room>, kSlots> for_lists_;  // in the order in which a step needs them
  std::vector<std::byte*> shared_;
  bool threads_ = false;
  bool left_ = false;
};

// Publishes that this rank is copying from a peer's memory, or to it. A peer that gives up waits for the end of the
// copy before its caller may use that memory (see Membership::post_abort), so each copy has to be short.
class CopyingGuard {
 public:
  CopyingGuard(Membership& m, Rank peer) : CopyingGuard(m, static_cast<uint32_t>(peer) + 1) {
    m.throw_if_aborted(peer);
  }
  // For copies from several peers. The caller then calls throw_if_aborted() for each of them before it copies.
  explicit CopyingGuard(Membership& m) : CopyingGuard(m, kAnyPeer) {}
  ~CopyingGuard() { end_copying(words_); }
  CopyingGuard(const CopyingGuard&) = delete;
  CopyingGuard& operator=(const CopyingGuard&) = delete;

 private:
  CopyingGuard(Membership& m, uint32_t mark) : words_(m.block().words()) { begin_copying(words_, mark); }

  RankWords& words_;
};

}  // namespace a2a::shm
