// The memory that the ranks of a process share with other processes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "runtime/fork_guard.h"
#include "transport/shm/memory/arena.h"
#include "transport/shm/peers/known_peers.h"
#include "transport/shm/protocol/layout.h"

namespace a2a::shm {

class ExposedTensors;

constexpr int kBells = 1024;  // per process: one for each thread that is a rank
constexpr size_t kBellsBytes = kBells * sizeof(BellWord);

// One per process. It lives until the process ends, because tensors in it may outlive every communicator.
class ProcessMemory {
 public:
  // Returns the memory of this process, and makes it on first use. After fork() the child gets its own.
  static ProcessMemory& get();

  // Memory that peers map read-only: words, lists, tensors.
  Arena& arena() { return arena_; }
  // Memory that peers may write, too: the doorbells at its beginning, and chunks.
  Arena& common() { return common_; }
  BellWord& bell(uint32_t index) { return reinterpret_cast<BellWord*>(common_.base())[index]; }
  uint32_t take_bell();
  void give_bell(uint32_t index);

  // The tensors that the ranks of this process expose to peers.
  ExposedTensors& exposed_tensors() { return *exposed_tensors_; }

  // The peers that ranks of this process have connected to.
  KnownPeers& known_peers() { return known_peers_; }

  // A random number that identifies this process. Peers read it here to find out whether they can read this memory.
  const uint64_t& nonce() const { return nonce_; }
  // Whether a fork() has copied this object into this process; see ForkGuard.
  bool inherited() const { return guard_.inherited(); }
  void refuse_if_inherited() const { guard_.refuse_if_inherited(); }

 private:
  ProcessMemory();

  Arena arena_, common_;
  ExposedTensors* const exposed_tensors_;  // never deleted, as this object
  KnownPeers known_peers_;
  uint64_t nonce_ = 0;
  const ForkGuard guard_;
  std::mutex mutex_;
  std::vector<uint32_t> free_bells_;
};

}  // namespace a2a::shm
