// The interface between the core and the transports of host memory.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "a2a/host_facts.h"
#include "a2a/work.h"
#include "core/message.h"
#include "core/schedule.h"
#include "core/stages/topology.h"
#include "core/views.h"

namespace a2a {

class Bootstrap;
class Status;
class Transport;

// How a rank has left a communicator.
enum class Left : uint32_t { no = 0, closed = 1, dropped = 2, replaced = 3 };

// The seams of a transport. Together they are Transport; a part of the core that needs one of them takes that alone.

// Moves bytes of host memory between the ranks of one group. It knows bytes, peers and sinks, never counts, frameworks
// or collectives, and dtypes only to compare them and to fold elements. The core has checked all arguments. It also
// compares operations that run on devices, where no rank can see what the others do.
class ByteTransport {
 public:
  virtual ~ByteTransport() = default;

  // Starts the exchange and returns at once: never waits for a peer. Operations run in the order of their numbers, and
  // those that share memory with an earlier operation or message begin when that is finished. A batch with a refusal
  // only tells every peer why this rank does not take part. Afterwards only the memory of the lists in `batch` is of
  // use; it may come from a finished operation.
  virtual std::shared_ptr<Work> start(Batch&& batch) = 0;

  // Whether it writes the output of a fold while peers may still read this rank's input.
  virtual bool folds() const { return false; }

  // Returns the most bytes of an allreduce that is faster in one stage, in which each rank gets the elements of all
  // others, than in two, for which each waits twice (Plan::allreduce). The same on all ranks.
  virtual size_t most_at_once() const { return 0; }

  // Starts to send a message, or to receive one. Only the two ranks take part: messages have no number, and nothing
  // orders them among the operations, except that one which shares memory with an earlier message or operation begins
  // when that is finished. Messages of one tag from one rank to another arrive in the order in which they were
  // started.
  virtual std::shared_ptr<MessageWork> post(const Message& message) = 0;

  // Returns the operations and messages in flight that use that memory. Once they are finished none does that was
  // started before.
  virtual Predecessors conflicting(const Footprint& memory) = 0;

  // For a caller that holds a lock which others want, and must not wait. claim() returns the lock that start_claimed()
  // requires in place of taking it. It owns nothing when another thread has the lock, or when a start needs more than
  // memory accesses.
  virtual std::unique_lock<std::mutex> claim() { return {}; }
  virtual std::shared_ptr<Work> start_claimed(Batch&& batch) { return start(std::move(batch)); }

  // Names a send of this rank that no receive has taken; "" if there is none. Advances messages first.
  virtual std::string unreceived() = 0;

  // Counts an operation that runs on a device without a comparison; the numbers go on as if it had run here. Returns
  // the error that already prevents it: see contradiction(), a peer that is gone without having come to it, or the
  // reason why the transport is broken. No rank waits for a peer in such an operation, so this is the place to notice
  // that.
  virtual std::optional<Error> pass(const Signature& signature) = 0;
  // Returns the error of a peer for an operation that this rank has passed: that peer refused its arguments, or runs
  // another operation or one on other memory. Nothing as long as no peer says so. A peer that compares the same
  // operation agrees.
  virtual std::optional<Error> contradiction(const Signature& signature) = 0;

  // Returns the refusal of a peer for the next operation, which this rank has not started yet.
  virtual std::optional<Error> refusal(const Signature& next) = 0;
};

// Notices failures, and tells the peers of them.
class Liveness {
 public:
  virtual ~Liveness() = default;

  // Fails every operation in flight, here and at the peers, with Error(aborted). Never throws, never blocks.
  virtual void abort(std::string_view reason) noexcept = 0;

  // Returns the error that broke it, if any. It is also broken when a peer has given up.
  virtual std::optional<Error> broken() = 0;
  // Whether it is broken and an operation here, or fail(), has noticed that. Does not look at the peers.
  virtual bool failed() = 0;
  // Checks the peers, also while nothing is in flight here. The abort of a peer breaks the transport. Returns the error
  // for a peer that died or left; that breaks only operations that still need it.
  virtual std::optional<Error> lost_peer() = 0;
  // Whether a peer's process is known to have ended without leaving.
  virtual bool peer_died() = 0;
  // Breaks the transport: this rank's and the peers' operations fail with that error.
  virtual void fail(const Error& error) noexcept = 0;
  // Describes what every peer did last, for messages.
  virtual std::string whereabouts() = 0;
  // Shows there, from now on, which operations have ended, and for whom this rank waits.
  virtual void show_in(std::shared_ptr<Status>) {}

  // Publishes that this rank has left: peers that still need it get Error(peer_lost), or where it has been replaced,
  // Error(aborted) with `why`. Operations in flight are aborted.
  virtual void leave(Left how, std::string_view why = {}) noexcept = 0;
  // Waits, for `patience` at most, for the peers to leave too, so that shared memory can be freed at once.
  virtual void await_departure(std::chrono::milliseconds patience) = 0;
};

// The group of ranks, and those made of it.
class Groups {
 public:
  virtual ~Groups() = default;

  // Collective over the bootstrap of the new group, whose rank i is rank members[i] of this one. Does not connect the
  // ranks again.
  virtual std::unique_ptr<Transport> derive(std::span<const Rank> members, Bootstrap& bootstrap, Deadline deadline) = 0;
  // Collective over the ranks that are alive; works on a broken transport too. Fills *members with the survivors.
  virtual std::unique_ptr<Transport> shrink(std::vector<Rank>* members, Deadline deadline) = 0;

  // Returns what connects this rank with the others: a group that they form later uses it again, while it is held
  // (Bootstrap::met_before).
  virtual std::shared_ptr<const void> connections() const = 0;

  // The hosts of the ranks; empty: all are on one.
  virtual std::shared_ptr<const Topology> topology() const { return nullptr; }

  virtual HostFacts facts() = 0;
  // Returns for each kind of memory how `bytes` would go to a peer in an exchange in which every pair of ranks has as
  // many.
  virtual std::vector<WayOfBytes> ways(size_t bytes) = 0;
};

// Views of the peers' tensors.
class TensorViews {
 public:
  virtual ~TensorViews() = default;

  // Begins to give every peer a view of a tensor of C order. Throws Error(invalid_argument) when its bytes lie in no
  // block of allocate_shared(), Error(unsupported) when peers are on other hosts.
  virtual std::shared_ptr<Exposure> expose(const std::byte* data, size_t bytes, DType dtype,
                                           std::span<const int64_t> shape) = 0;
};

class Transport : public ByteTransport, public Liveness, public Groups, public TensorViews {};

}  // namespace a2a
