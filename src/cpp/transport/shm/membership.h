// A rank's place in one group: its own words, its peers' words, and the rings between them. No operation lives here.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/shm/layout.h"
#include "transport/shm/neighbour.h"
#include "transport/shm/progress.h"

namespace a2a::shm {

// From how many bytes of a pair on the receiver copies straight from the sender's memory, which saves one of two copies
// and costs the sender a wait for the receiver. Measured: docs/performance.md.
struct Thresholds {
  size_t shared = size_t{16} << 10;  // A2A_SHM_DIRECT_MIN: the source lies in shared memory, or in the same process
  size_t remote = size_t{4} << 20;   // A2A_SHM_CMA_MIN: the source is private, read with process_vm_readv; below, two
                                     // copies through a ring that stays in the caches are faster
  size_t stream = size_t{8} << 20;   // A2A_SHM_STREAM_MIN: bytes a rank receives in all, written past the caches

  // With the environment's overrides. Throws Error(invalid_argument) when one is not a number.
  static Thresholds from_environment(bool crowded);
};

// The staging ring of one ordered pair, in the sender's segment.
struct Ring {
  static constexpr uint64_t kChunks = 8;

  std::byte* base = nullptr;              // made on first use
  uint64_t produced = 0;                  // chunks filled since the communicator was made
  uint64_t consumed = 0;                  // chunks known to be free again
  std::array<uint64_t, kSlots> end = {};  // `produced` at the end of the operation that used this slot last

  bool has_room() const { return produced - consumed < kChunks; }
};

struct Peer {
  std::shared_ptr<Neighbour> host;  // empty for this rank itself
  Block block;
  uint64_t uid = 0;   // of the block
  uint64_t done = 0;  // what is known of its `done`
  Ring ring;          // towards it
};

class Membership {
 public:
  // A zeroed block of this process's segment, given back unless a membership takes it over.
  struct GiveBack {
    void operator()(std::byte* block) const noexcept;
  };
  using NewBlock = std::unique_ptr<std::byte, GiveBack>;
  static NewBlock new_block(Host& host, int size);

  Membership(Rank rank, NewBlock block, std::shared_ptr<Progress> progress, Surroundings surroundings,
             std::vector<std::shared_ptr<Neighbour>> neighbours, std::span<const uint64_t> blocks);
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  Rank rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  Peer& peer(Rank rank) { return peers_[static_cast<size_t>(rank)]; }
  const Block& block() const { return block_; }
  Progress& progress() { return *progress_; }
  const std::shared_ptr<Progress>& shared_progress() const { return progress_; }
  const Surroundings& surroundings() const { return surroundings_; }
  const Thresholds& thresholds() const { return thresholds_; }
  Arena& arena() { return progress_->host().arena(); }
  bool threads() const { return threads_; }

  size_t chunk_bytes() const { return chunk_bytes_; }
  // The ring towards a peer; allocates it the first time.
  Ring& ring(Rank peer);

  // Whether the slot of operation n is free at this peer; also frees the ring's chunks of the operation before in it.
  bool slot_free(Rank peer, uint64_t n);
  // Whether this peer has finished operation n.
  bool finished(Rank peer, uint64_t n);

  // Rings every peer that sleeps.
  void wake_sleepers();
  // Tells every peer that this rank has given up, and wakes them all.
  void post_abort(Code code, std::string_view text) noexcept;
  // Tells every peer that this rank takes no more part.
  void leave(Left how) noexcept;

  // Throws what a peer gave up with, if it did. One that gave up may have changed its buffers while they were read, and
  // has raised an error for this operation: it must not count as a success here.
  void throw_if_aborted(Rank peer);

  // Waits until every peer has left or is gone, or the deadline passes.
  void see_off(Deadline deadline);

  // "rank 2 (pid 4711, alive): last operation allgather #7, finished up to #6"
  std::string describe(Rank peer);

 private:
  uint32_t my_mark() const { return static_cast<uint32_t>(rank_) + 1; }

  Rank rank_;
  Block block_;
  std::shared_ptr<Progress> progress_;
  Surroundings surroundings_;
  Thresholds thresholds_;
  std::vector<Peer> peers_;
  size_t chunk_bytes_;
  bool threads_ = false;
  bool left_ = false;
};

}  // namespace a2a::shm
