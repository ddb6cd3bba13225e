// The seam between the core and what carries bytes.
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
#include "core/views.h"

namespace a2a {

class Bootstrap;

// How a rank parts from a communicator.
enum class Left : uint32_t { no = 0, closed = 1, dropped = 2 };

// Moves bytes of host memory between the ranks of one group. It knows bytes and peers, never counts, dtypes (beyond
// comparing them) or frameworks. Arguments were checked before they get here. It also carries what the ranks have to
// tell each other about operations that run on devices, where no rank can see what the others do.
class Transport {
 public:
  virtual ~Transport() = default;

  // Starts the exchange and returns at once: never waits for a peer. Operations run in the order of their numbers.
  // A batch with a refusal takes part only to tell every peer why this rank does not. What is left in `batch` is of no
  // use but for its lists' memory, which may be that of an operation that is over.
  virtual std::shared_ptr<Work> start(Batch&& batch) = 0;

  // Whether it writes the output of a reduction while peers may still read what this rank sends. Every transport folds
  // what arrives (Signature::fold), and runs operations in two halves.
  virtual bool folds() const { return false; }

  // Whether it runs weighted sums (Batch::sum). For the others the core receives the rows, and sums them at the end.
  virtual bool sums() const { return false; }

  // The most bytes of an allreduce that is faster in one exchange, in which each rank gets what all others have, than
  // in parts, for which each waits twice (Plan::allreduce). The same on all ranks.
  virtual size_t most_at_once() const { return 0; }

  // Starts to send a message, or to receive one. Only the two ranks take part: messages have no number, and their order
  // among the operations does not matter. Messages of one tag from one rank to another arrive in the order in which
  // they were started.
  virtual std::shared_ptr<MessageWork> post(const Message& message) = 0;

  // For a caller that holds a lock others want, and must not be kept waiting: the lock that start_claimed() wants held
  // instead of taking it. Owns nothing when another thread has it, or when starting asks more than memory.
  virtual std::unique_lock<std::mutex> claim() { return {}; }
  virtual std::shared_ptr<Work> start_claimed(Batch&& batch) { return start(std::move(batch)); }

  // Fails every operation in flight, here and at the peers, with Error(aborted). Never throws, never blocks.
  virtual void abort(std::string_view reason) noexcept = 0;

  // The operation runs on a device without being compared first. Numbers go on as if it had run here. Returns what
  // stands against it already: see contradiction(), a peer that is gone without having come to it, or why the transport
  // is broken. Nobody waits for a peer then, so this is the place to hear of it.
  virtual std::optional<Error> pass(const Signature& signature) = 0;
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
  virtual std::unique_ptr<Transport> derive(std::span<const Rank> members, Bootstrap& bootstrap, Deadline deadline) = 0;
  // Collective over the ranks that are alive; works on a broken transport too. Fills *members with the survivors.
  virtual std::unique_ptr<Transport> shrink(std::vector<Rank>* members, Deadline deadline) = 0;

  // Takes no more part: peers that still need this rank learn that it left. Operations in flight are aborted.
  virtual void leave(Left how) noexcept = 0;
  // Waits a little for the peers to leave too, so that what is shared with them can be given back at once.
  virtual void see_off(std::chrono::milliseconds patience) = 0;

  virtual HostFacts facts() = 0;
  // How `bytes` would go to a peer in an exchange in which every pair of ranks has as many, for each kind of memory.
  virtual std::vector<WayOfBytes> ways(size_t bytes) = 0;

  // Begins to show a tensor of C order to every peer. Throws Error(invalid_argument) when its bytes lie in no block of
  // allocate_shared(), Error(unsupported) when peers live on other hosts.
  virtual std::shared_ptr<Loan> lend(const std::byte* data, size_t bytes, DType dtype,
                                     std::span<const int64_t> shape) = 0;
};

}  // namespace a2a
