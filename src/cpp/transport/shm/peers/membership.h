// A rank's place in one group: its own words, its peers' words, and the chunks between them. No operation lives here.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/transport.h"
#include "transport/shm/peers/neighbour.h"
#include "transport/shm/peers/shm_progress.h"
#include "transport/shm/policy/machine.h"
#include "transport/shm/protocol/chunks.h"
#include "transport/shm/protocol/layout.h"
#include "transport/shm/protocol/protocol.h"

namespace a2a::shm {

struct Peer {
  std::shared_ptr<Neighbour> host;  // empty for this rank itself
  Block block;
  uint64_t uid = 0;   // of the block
  uint64_t done = 0;  // what is known of its `done`
  Chunks chunks;      // shared with it
};

class Membership {
 public:
  // A zeroed block of this process's segment, given back unless a membership takes it over.
  struct GiveBack {
    void operator()(std::byte* block) const noexcept;
  };
  using NewBlock = std::unique_ptr<std::byte, GiveBack>;
  static NewBlock new_block(Host& host, int size);
  // Of a block that peers may have taken into a new group: tells them that this rank has left it. Its memory is never
  // used again, because nobody knows how long they look at it.
  static void abandon(NewBlock block, Left how) noexcept;

  // `names` is what messages call the ranks, by rank; empty: by their own numbers.
  Membership(Rank rank, NewBlock block, std::shared_ptr<ShmProgress> progress, Surroundings surroundings,
             std::vector<std::shared_ptr<Neighbour>> neighbours, std::span<const uint64_t> blocks,
             std::vector<Rank> names = {});
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  Rank rank() const { return rank_; }
  int size() const { return size_; }
  // What messages call a rank: where a group has ranks on other hosts, too, its number in all of it.
  Rank name(Rank rank) const { return names_.empty() ? rank : names_[static_cast<size_t>(rank)]; }
  // The rank that messages call so; it lives on this host.
  Rank rank_named(Rank name) const;
  Peer& peer(Rank rank) { return peers_[static_cast<size_t>(rank)]; }
  const Block& block() const { return block_; }
  ShmProgress& progress() { return *progress_; }
  const std::shared_ptr<ShmProgress>& shared_progress() const { return progress_; }
  const Machine& machine() const { return machine_; }
  const Surroundings& surroundings() const { return machine_.surroundings; }
  Arena& arena() { return progress_->host().arena(); }
  bool threads() const { return threads_; }

  // From how many bytes on the kernel's copy is faster. What the lowest rank has measured counts: two ranks that go
  // different ways keep each other waiting.
  size_t cma_pays_from();

  // The chunks shared with a peer; brings this rank's share the first time.
  Chunks& chunks_to_fill(Rank peer);

  // Room in this rank's segment for what all peers get alike in step n, whose slots are free. Peers may read there
  // until they have finished it; it is used again by the step that takes the same slots. nullptr where the
  // program's tensors have left none.
  std::byte* room_for_all(uint64_t n, size_t bytes);
  // The same for the i-th of step n's lists of runs. Throws Error(backend) where there is none.
  std::byte* room_for_list(uint64_t n, size_t i, size_t bytes);

  // Memory of this rank's segment that peers may read until they have left. Throws Error(backend) where there is none.
  std::byte* lend(size_t bytes);
  // The peers read it no more.
  void take_back(std::byte* memory) noexcept;

  // Whether the slot of step n is free at this peer.
  bool slot_free(Rank rank, uint64_t n) { return n <= kSlots || finished(rank, n - kSlots); }
  // Whether this peer has finished step n.
  bool finished(Rank rank, uint64_t n) {
    Peer& p = peer(rank);
    return p.done >= n || is_done(p.block.words(), n, &p.done);
  }

  // Publishes that this rank is done with an operation of which nothing goes through shared memory. Everything before
  // it is finished.
  void pass(const Signature& signature);

  // Where ranks share CPUs: sees to it that this one does not share its CPU with more of them than necessary.
  void spread();
  // Whether a peer ran on this rank's CPU last.
  bool beside_peer() const;

  // Rings every peer that sleeps.
  void wake_sleepers();
  // Rings this peer if it sleeps.
  void wake_sleeper(Rank rank);
  // Tells every peer that this rank has given up, and wakes them all.
  void post_abort(Code code, std::string_view text) noexcept;
  // Tells every peer that this rank takes no more part.
  void leave(Left how) noexcept;

  // Throws what a peer gave up with, if it did. One that gave up may have changed its buffers while they were read, and
  // has raised an error for this operation: it must not count as a success here.
  void throw_if_aborted(Rank peer);
  // Throws because of something that a peer wrote.
  [[noreturn]] void nonsense(Rank peer, const char* what);

  // Waits until every peer has left or is gone, or the deadline passes.
  void see_off(Deadline deadline);

  // "rank 2 (pid 4711, alive): last operation allgather #7, finished up to #6"
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
  struct Room {
    std::byte* data = nullptr;
    size_t bytes = 0;
  };
  void enlarge(Room& room, size_t bytes, size_t aside);
  std::array<Room, kSlots> for_all_;
  std::array<std::vector<Room>, kSlots> for_lists_;  // in the order in which a step needs them
  std::vector<std::byte*> lent_;
  bool threads_ = false;
  bool left_ = false;
};

// Says that this rank is copying from a peer's memory, or to it, in steps short enough to wait for. A peer that gives
// up waits for the end of the step before its caller may use that memory (see Membership::post_abort).
class CopyingGuard {
 public:
  CopyingGuard(Membership& m, Rank peer) : CopyingGuard(m, static_cast<uint32_t>(peer) + 1) {
    m.throw_if_aborted(peer);
  }
  // From several peers: whoever copies asks throw_if_aborted() for each of them, once it has this.
  explicit CopyingGuard(Membership& m) : CopyingGuard(m, kAnyPeer) {}
  ~CopyingGuard() { end_copying(words_); }
  CopyingGuard(const CopyingGuard&) = delete;
  CopyingGuard& operator=(const CopyingGuard&) = delete;

 private:
  CopyingGuard(Membership& m, uint32_t mark) : words_(m.block().words()) { begin_copying(words_, mark); }

  RankWords& words_;
};

}  // namespace a2a::shm
