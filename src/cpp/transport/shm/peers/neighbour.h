// A peer rank on this host, as this rank reaches it; and how all ranks of a group meet.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "a2a/bootstrap.h"
#include "a2a/types.h"
#include "transport/shm/peers/host.h"
#include "transport/shm/policy/machine.h"

namespace a2a::shm {

class ShmProgress;

// What it takes to wake a peer: where it says that it sleeps, and what it sleeps on.
struct Sleeper {
  const SeatWords* seat = nullptr;
  BellWord* bell = nullptr;
};

// Shared by a communicator and the ones split from it. Keeps the peer's segment mapped as long as it exists.
struct Neighbour {
  pid_t pid = 0;                    // in this process's view, 0 when it cannot be seen
  bool same_process = false;        // a thread of this process: its memory is ours
  bool cma_from = false;            // this rank may copy from its memory with process_vm_readv
  bool cma_to = false;              // it may copy from this rank's
  const std::byte* base = nullptr;  // of its segment
  size_t bytes = 0;
  std::atomic<size_t> open{0};   // as far as it has been accessed, here
  std::byte* outputs = nullptr;  // its segment once more, where this rank may write; see map_outputs()
  std::byte* common = nullptr;   // where both may write
  size_t common_bytes = 0;
  std::atomic<size_t> common_open{0};
  const SeatWords* seat = nullptr;
  BellWord* bell = nullptr;

  Neighbour() = default;
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;
  ~Neighbour();

  Sleeper sleeper() const { return {seat, bell}; }
  // Its block at that offset of its segment. Throws Error(backend) when it would not lie inside.
  Block block(uint64_t offset, int size);
  // Whether all of these bytes lie in its segment. They can be accessed then.
  bool reach(uint64_t where, uint64_t n) {
    const size_t known = open.load(std::memory_order_relaxed);
    return (where <= known && known - where >= n) || reach_further(where, n);
  }
  // The same for the memory where both may write.
  bool reach_common(uint64_t where, uint64_t n) {
    const size_t known = common_open.load(std::memory_order_relaxed);
    return (where <= known && known - where >= n) || reach_further_in_common(where, n);
  }
  // Where this rank may write to bytes of the segment, which it reaches. Throws Error(backend).
  std::byte* output(const std::byte* data, size_t n);
  // Maps its segment so that this rank can put bytes into tensors there: when it first does, since most ranks never do.
  // Returns whether it can. Not thread-safe.
  bool map_outputs();
  // Whether its process is gone; once true, always true. Asks the kernel.
  bool gone();
  // For messages: "pid 4711, stopped", "pid 4711, exited", ...
  std::string state() const;

  Host* host = nullptr;
  Mapping segment, common_memory, writable_segment;  // empty for a thread of this process
  Descriptor socket, pidfd;
  std::atomic<bool> lost{false};
  bool tried_to_map = false;

 private:
  bool reach_further(uint64_t where, uint64_t n);
  bool reach_further_in_common(uint64_t where, uint64_t n);
};

// All that a rank needs to look at its peers' memory, also when the communicator is gone.
struct Vicinity {
  Rank rank = 0;
  std::vector<std::shared_ptr<Neighbour>> neighbours;  // by rank; empty at this rank's own place
  std::shared_ptr<ShmProgress> progress;
};

struct Meeting {
  std::vector<std::shared_ptr<Neighbour>> neighbours;  // by rank; empty at this rank's own place
  std::vector<uint64_t> blocks;                        // offset of each rank's block in its segment
  Surroundings surroundings;
};

// Collective over the bootstrap. Tells the others about this rank's seat and block, and makes sure that each pair sees
// each other's memory. Throws Error(unsupported) when ranks live on several hosts or belong to other users,
// Error(peer_lost) when a rank dies meanwhile, Error(timeout). `names` as in Membership.
Meeting meet(Rank rank, int size, Bootstrap& bootstrap, ShmProgress& progress, uint64_t block_offset, Deadline deadline,
             std::span<const Rank> names);

}  // namespace a2a::shm
