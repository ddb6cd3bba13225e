// The interface between the core and the transports of device memory.
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

  // Makes the device the current one of the calling thread while the result lives. One call serves several of the
  // following calls.
  virtual std::shared_ptr<void> make_current() const = 0;

  // Throws for arguments that the driver or the vendor's library would refuse, before a peer is involved. Returns
  // whether the stream records a graph.
  virtual bool check(const Batch& batch, Stream stream) const = 0;

  // Enqueues the operation on the caller's stream. With batch.asynchronous it uses a stream of this transport that
  // waits for the work enqueued on the caller's so far; a recorded operation is always enqueued on the caller's.
  // `recorded` is what check() returned. An error of this call breaks the communicator, because the peers cannot be
  // told. Requires one call at a time.
  virtual std::shared_ptr<Work> start(Batch&& batch, Stream callers, bool recorded) = 0;

  // Fails every operation in flight, here and at the peers, with Error(aborted). Never throws, never blocks.
  virtual void abort(std::string_view reason) noexcept = 0;
  // Breaks the communicator on all ranks.
  virtual void fail(const Error& error) noexcept = 0;
  // Ends all operations in flight here, and accepts no more. The peers are not told.
  virtual void let_go() noexcept = 0;
  // Waits until all operations in flight here are done, with or without an error, or the deadline passes.
  virtual void drain(Deadline deadline) = 0;
  // Collective, after drain() on every rank. Requires that start() is not running.
  virtual void close() = 0;
};

// The means by which the ranks of a group make a vendor's communicator.
struct DeviceMeeting {
  Rank rank = 0;
  int size = 1;
  Check check = Check::first;
  void* adopted = nullptr;  // the caller's vendor communicator
  std::string rank_table;
  Deadline deadline = Deadline::never();
  std::function<std::vector<std::string>(std::string_view)> tell_all;  // an allgather over host memory
  std::function<void(std::string_view)>
      refuse;  // tells the peers why this rank does not take part in the next operation
  std::function<std::optional<Error>()> peer_refuses;  // the refusal of a peer, if there is one
  std::shared_ptr<Transport> host;
};

}  // namespace a2a
