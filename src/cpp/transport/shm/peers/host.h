// The memory of a process that its ranks share with others.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "runtime/fork_guard.h"
#include "transport/shm/memory/arena.h"
#include "transport/shm/protocol/layout.h"

namespace a2a::shm {

class Loans;

constexpr int kBells = 1024;  // per process: one for each thread that is a rank
constexpr size_t kBellsBytes = kBells * sizeof(BellWord);

// One per process. Lives until the process ends: exported tensors may outlive every communicator.
class Host {
 public:
  // Returns the host object of this process, and makes it on first use. After fork() the child gets its own.
  static Host& get();

  // Memory that peers map read-only: words, lists, tensors.
  Arena& arena() { return arena_; }
  // Memory that peers may write, too: the doorbells at its beginning, and chunks.
  Arena& common() { return common_; }
  BellWord& bell(uint32_t index) { return reinterpret_cast<BellWord*>(common_.base())[index]; }
  uint32_t take_bell();
  void give_bell(uint32_t index);

  // The tensors that the ranks of this process have lent.
  Loans& loans() { return *loans_; }

  // A random number that identifies this process. Peers prove with it that they can read this memory.
  const uint64_t& nonce() const { return nonce_; }
  // See ForkGuard.
  bool inherited() const { return guard_.inherited(); }
  void refuse_if_inherited() const { guard_.refuse_if_inherited(); }

 private:
  Host();

  Arena arena_, common_;
  Loans* const loans_;  // never deleted, like the host
  uint64_t nonce_ = 0;
  const ForkGuard guard_;
  std::mutex mutex_;
  std::vector<uint32_t> free_bells_;
};

}  // namespace a2a::shm
