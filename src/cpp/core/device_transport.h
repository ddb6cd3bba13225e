// The seam between the core and what carries bytes of device memory.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "a2a/communicator.h"
#include "core/transport.h"

namespace a2a {

// Moves bytes of one device's memory between the ranks of one group: enqueues operations on streams, and watches them.
class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;

  virtual int index() const = 0;         // of the device
  virtual std::string name() const = 0;  // "cuda:0"

  // Makes the device the calling thread's current one while the result lives: once for several of the following calls.
  virtual std::shared_ptr<void> make_current() const = 0;

  // Throws what the driver or the vendor's library would refuse, before any peer is involved. Returns whether the
  // stream records a graph.
  virtual bool check(const Batch& batch, Stream stream) const = 0;

  // Enqueues on the caller's stream, or, for batch.asynchronous, on one of this transport that waits for what the
  // caller's has so far; what is recorded into a graph, always on the caller's. `recorded` is what check() returned. An
  // error on the way breaks the communicator, because the peers cannot be told. One at a time.
  virtual std::shared_ptr<Work> start(Batch&& batch, Stream callers, bool recorded) = 0;

  // Fails every operation in flight, here and at the peers, with Error(aborted). Never throws, never blocks.
  virtual void abort(std::string_view reason) noexcept = 0;
  // Breaks the communicator on all ranks.
  virtual void fail(const Error& error) noexcept = 0;
  // Ends what is in flight here, and takes nothing more. The peers are not told.
  virtual void let_go() noexcept = 0;
  // Waits until everything in flight here is done, well or not, or the deadline passes.
  virtual void drain(Deadline deadline) = 0;
  // Collective, after drain() on every rank. Takes turns with start().
  virtual void close() = 0;
};

// What the ranks of a group use to come to a vendor's communicator.
struct DeviceMeeting {
  Rank rank = 0;
  int size = 1;
  Check check = Check::first;
  void* adopted = nullptr;  // the caller's vendor communicator
  std::string rank_table;
  Deadline deadline = Deadline::never();
  std::function<std::vector<std::string>(std::string_view)> tell_all;  // an allgather over host memory
  std::function<void(std::string_view)> refuse;        // tells all why this rank does not take part in the next one
  std::function<std::optional<Error>()> peer_refuses;  // whether a peer has done that
  std::shared_ptr<Transport> host;
};

}  // namespace a2a
