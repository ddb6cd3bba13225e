// The interface to a vendor's libraries: NCCL with the CUDA driver, HCCL with AscendCL.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/schedule.h"
#include "transport/device/device.h"

namespace a2a::device {

// A vendor's communicator: the ranks of one group, each with one device. Only one thread at a time may use it, except
// abort() and failure().
class Collectives {
 public:
  // Without close() it releases the communicator as abort() does, and never waits for a peer.
  virtual ~Collectives() = default;

  // Throws Error(invalid_argument) or Error(unsupported), with the reason, when the library cannot run the batch. Asks
  // no peer, and enqueues nothing.
  virtual void check(const Batch& batch) const = 0;

  // Enqueues the batch, including runs to this rank itself. Returns what must live until it is done, if anything. The
  // choice of the library's calls depends only on what all ranks have in common: the operation, the dtype, and in a
  // reduction the counts.
  virtual std::shared_ptr<void> enqueue(const Batch& batch, Stream stream) = 0;

  // Tells that the next batches are recorded into graphs. Those may outlive this, and be launched at any time.
  virtual void capturing() {}

  // Returns the library's asynchronous error, if there is one. Cheap.
  virtual std::optional<std::string> failure() = 0;

  // Ends the operations in flight, which are on these streams, and makes later ones fail. Requires that the device is
  // current, if it still can be. Any thread may call it, any number of times.
  virtual void abort(std::span<const Stream> busy) noexcept = 0;

  // Collective. Requires that every rank's operations are done.
  virtual void close() = 0;
};

// The arguments for joining a new communicator.
struct Joining {
  Rank rank = 0;
  int size = 1;
  std::string root;        // the result of Vendor::new_root() on rank 0
  std::string rank_table;  // path of a rank table to use instead, where the vendor supports one; usually empty
  // Call it every few milliseconds while the vendor's library waits for the others. Throws when the wait has to end.
  std::function<void()> look;
};

// A vendor's libraries in this process.
class Vendor {
 public:
  virtual ~Vendor() = default;

  // Returns the version, which all ranks of a group must have alike: "NCCL 2.32.3".
  virtual std::string version() const = 0;
  virtual std::unique_ptr<Device> device(int index) = 0;
  // Returns the index of the device whose memory the pointer refers to; nullopt for any other memory.
  virtual std::optional<int> device_of(const void* pointer) = 0;
  // Returns a byte string with which the other ranks find rank 0.
  virtual std::string new_root(Device& device) = 0;
  // Collective; blocks until all ranks have joined. Throws Error(backend), or what `look` throws.
  virtual std::unique_ptr<Collectives> join(Device& device, const Joining& joining) = 0;
  // Uses the caller's communicator, which the caller still owns. Throws Error(invalid_argument) unless its rank and
  // size are these.
  virtual std::unique_ptr<Collectives> adopt(Device& device, void* communicator, Rank rank, int size) = 0;
};

// Returns the vendor for a kind of memory. Throws Error(unsupported), with the places that were searched.
Vendor& vendor_of(Memory memory);

}  // namespace a2a::device
