// The seam a backend implements: start a batch, and give up.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "a2a/schedule.h"
#include "a2a/work.h"

namespace a2a {

// A transport moves bytes between the ranks of one group. It knows bytes, peers and streams, never counts, dtypes
// (beyond comparing them) or frameworks. Arguments were checked before they get here.
class A2A_API Transport {
 public:
  virtual ~Transport() = default;

  // Starts the exchange and returns at once: never waits for a peer. Operations run in the order of their numbers.
  // A batch with a refusal takes part only to tell every peer why this rank does not.
  virtual std::shared_ptr<Work> start(Batch batch, Stream stream) = 0;

  // Fails every operation in flight, here and at the peers, with Error(aborted). Never throws, never blocks.
  virtual void abort(std::string_view reason) noexcept = 0;
};

// The transport of host memory. It also carries what the ranks have to tell each other about operations that run on
// devices, where no rank can see what the others do.
class A2A_API HostTransport : public Transport {
 public:
  // The operation runs on a device without being compared first. Numbers go on as if it had run here. Returns what
  // stands against it already (see contradiction()), or why the transport is broken.
  virtual std::optional<Error> pass(const Signature& signature) = 0;
  // What a peer says about an operation that this rank has passed: that it refused its arguments, or runs another one
  // or on other memory. Nothing as long as no peer says so. A peer that compares the same operation is satisfied.
  virtual std::optional<Error> contradiction(const Signature& signature) = 0;

  // What a peer says about the next operation, which this rank has not started yet: that it refuses to take part.
  virtual std::optional<Error> refusal(const Signature& next) = 0;

  // The error that broke it, if any.
  virtual std::optional<Error> broken() = 0;
  // Looks after the peers, also while nothing is in flight here: an abort breaks the transport. Returns the error for
  // one that died or left, which only breaks what still needs it.
  virtual std::optional<Error> lost_peer() = 0;
  // Breaks the transport: this rank's and the peers' operations fail with that error.
  virtual void fail(const Error& error) noexcept = 0;
  // What every peer did last, for messages.
  virtual std::string whereabouts() = 0;
};

}  // namespace a2a
