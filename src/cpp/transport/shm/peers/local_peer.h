// A peer rank on this host: its process, and what this rank maps of its memory.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <vector>

#include "a2a/types.h"
#include "transport/shm/peers/process_memory.h"
#include "transport/shm/policy/machine.h"

namespace a2a::shm {

class ShmProgress;

// The words for waking a peer: its seat says whether it sleeps; it sleeps on its bell.
struct Sleeper {
  const SeatWords* seat = nullptr;
  BellWord* bell = nullptr;
};

// Communicators share it with those derived from them. It keeps the peer's segment mapped.
struct LocalPeer {
  uint64_t link = 0;                // the number of the connection; both ends know it
  pid_t pid = 0;                    // as this process sees it, 0 when it is not visible
  bool same_process = false;        // a thread of this process
  bool cma_from = false;            // this rank may copy from its memory with process_vm_readv
  bool cma_to = false;              // it may copy from the memory of this rank
  const std::byte* base = nullptr;  // its segment
  size_t bytes = 0;
  std::atomic<size_t> open{0};  // accessible bytes of it, from the beginning
  std::byte* common = nullptr;  // its memory that both ranks may write
  size_t common_bytes = 0;
  std::atomic<size_t> common_open{0};
  const SeatWords* seat = nullptr;
  BellWord* bell = nullptr;

  LocalPeer() = default;
  LocalPeer(const LocalPeer&) = delete;
  LocalPeer& operator=(const LocalPeer&) = delete;
  ~LocalPeer();

  Sleeper sleeper() const { return {seat, bell}; }
  // Returns its block at that offset of its segment. Throws Error(backend) when the block would not lie inside.
  Block block(uint64_t offset, int size);
  // Makes these bytes of its segment accessible. Returns false when they do not lie inside.
  bool reach(uint64_t where, uint64_t n) {
    const size_t known = open.load(std::memory_order_relaxed);
    return (where <= known && known - where >= n) || reach_further(where, n);
  }
  // The same for the memory that both may write.
  bool reach_common(uint64_t where, uint64_t n) {
    const size_t known = common_open.load(std::memory_order_relaxed);
    return (where <= known && known - where >= n) || reach_further_in_common(where, n);
  }
  // Whether its process is gone; once true, always true. Asks the kernel.
  bool gone();
  // Describes its process, for the texts of errors: "pid 4711, stopped", "pid 4711, exited", ...
  std::string state() const;

  ProcessMemory* own_memory = nullptr;  // of this process; set when the descriptors are
  Mapping segment, common_memory;       // empty for a thread of this process
  Descriptor socket, pidfd;
  std::atomic<bool> lost{false};

 private:
  bool reach_further(uint64_t where, uint64_t n);
  bool reach_further_in_common(uint64_t where, uint64_t n);
};

// The state that a rank needs to view its peers' tensors. It may outlive the communicator.
struct LocalGroup {
  Rank rank = 0;
  std::vector<std::shared_ptr<LocalPeer>> local_peers;  // by rank; empty at this rank's own place
  std::shared_ptr<ShmProgress> progress;
};
}  // namespace a2a::shm
