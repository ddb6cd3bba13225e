// The seam a backend implements: start a batch, and give up.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "a2a/schedule.h"
#include "a2a/work.h"

namespace a2a {

class Bootstrap;

namespace shm {
struct Vicinity;
}

// A transport moves bytes between the ranks of one group. It knows bytes, peers and streams, never counts, dtypes
// (beyond comparing them) or frameworks. Arguments were checked before they get here.
class A2A_API Transport {
 public:
  virtual ~Transport() = default;

  // Starts the exchange and returns at once: never waits for a peer. Operations run in the order of their numbers.
  // A batch with a refusal takes part only to tell every peer why this rank does not. What is left in `batch` is of no
  // use but for its lists' memory, which may be that of an operation that is over.
  virtual std::shared_ptr<Work> start(Batch&& batch, Stream stream) = 0;

  // Fails every operation in flight, here and at the peers, with Error(aborted). Never throws, never blocks.
  virtual void abort(std::string_view reason) noexcept = 0;
};

// How a rank parts from a communicator.
enum class Left : uint32_t { no = 0, closed = 1, dropped = 2 };

// Facts for `a2a info` and for messages.
struct HostFacts {
  int ranks = 1;  // of the group on this host
  int cpus = 1;   // allowed to them together
  bool oversubscribed = false;
  bool vm_readv = false;  // every peer of this host may be read with process_vm_readv
  int hosts = 1;          // that the group's ranks live on
  uint64_t messages = 0;  // that this rank has sent to other hosts
  // From how many bytes on this rank's host memory takes another way (A2A_SHM_..._MIN in docs/transports.md).
  size_t direct_min = 0, cma_min = 0, stream_min = 0;
  bool string_copies = false;  // of 4 KiB and more, by `rep movsb` and not by a loop, because they are faster here
  bool puts = false;           // one copy from shared memory to shared memory is made by its sender
};

// The transport of host memory. It also carries what the ranks have to tell each other about operations that run on
// devices, where no rank can see what the others do.
class A2A_API HostTransport : public Transport {
 public:
  // The operation runs on a device without being compared first. Numbers go on as if it had run here. Returns what
  // stands against it already: see contradiction(), a peer that is gone without having come to it, or why the transport
  // is broken. Nobody waits for a peer then, so this is the place to hear of it.
  virtual std::optional<Error> pass(const Signature& signature) = 0;
  // For a caller that holds a lock others want, and must not be kept waiting: the lock that start_claimed() wants held
  // instead of taking it. Owns nothing when another thread has it, or when starting asks more than memory.
  virtual std::unique_lock<std::mutex> claim() { return {}; }
  virtual std::shared_ptr<Work> start_claimed(Batch&& batch) { return start(std::move(batch), {}); }
  // What a peer says about an operation that this rank has passed: that it refused its arguments, or runs another one
  // or on other memory. Nothing as long as no peer says so. A peer that compares the same operation is satisfied.
  virtual std::optional<Error> contradiction(const Signature& signature) = 0;

  // What a peer says about the next operation, which this rank has not started yet: that it refuses to take part.
  virtual std::optional<Error> refusal(const Signature& next) = 0;

  // The error that broke it, if any. A peer that has given up has broken it, too.
  virtual std::optional<Error> broken() = 0;
  // Whether it is broken and an operation here, or fail(), has met that: nobody is asked.
  virtual bool failed() = 0;
  // Looks after the peers, also while nothing is in flight here: an abort breaks the transport. Returns the error for
  // one that died or left, which only breaks what still needs it.
  virtual std::optional<Error> lost_peer() = 0;
  // Whether a peer's process is known to have ended without leaving.
  virtual bool peer_died() = 0;
  // Breaks the transport: this rank's and the peers' operations fail with that error.
  virtual void fail(const Error& error) noexcept = 0;
  // What every peer did last, for messages.
  virtual std::string whereabouts() = 0;

  // Collective over the bootstrap of the new group, whose rank i is rank members[i] of this one. Works without meeting
  // again.
  virtual std::unique_ptr<HostTransport> derive(std::span<const Rank> members, Bootstrap& bootstrap,
                                                Deadline deadline) = 0;
  // Collective over the ranks that are alive; works on a broken transport too. Fills *members with the survivors.
  virtual std::unique_ptr<HostTransport> shrink(std::vector<Rank>* members, Deadline deadline) = 0;

  // Takes no more part: peers that still need this rank learn that it left. Operations in flight are aborted.
  virtual void leave(Left how) noexcept = 0;
  // Waits a little for the peers to leave too, so that what is shared with them can be given back at once.
  virtual void see_off(std::chrono::milliseconds patience) = 0;

  virtual HostFacts facts() = 0;

  // How this rank reaches the memory of the others; nothing where some of them live on another host.
  virtual std::shared_ptr<const shm::Vicinity> vicinity() { return nullptr; }
};

}  // namespace a2a
