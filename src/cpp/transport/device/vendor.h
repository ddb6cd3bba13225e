// What a vendor's libraries do for the device transport: NCCL with the CUDA driver, HCCL with AscendCL.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/schedule.h"
#include "transport/device/device.h"

namespace a2a::device {

// A vendor's communicator: the ranks of one group, each with one device. Used by one thread at a time except abort()
// and failure().
class Collectives {
 public:
  // Without close() it lets go as abort() does, never waiting for a peer.
  virtual ~Collectives() = default;

  // Whether the library can run such a batch; throws Error(invalid_argument) or Error(unsupported) with the reason. No
  // peer is asked, and nothing enqueued.
  virtual void check(const Batch& batch) const = 0;

  // Enqueues the batch, self runs included, and returns what must live until it is done, if anything. Which of the
  // library's calls it makes depends only on what all ranks have in common: the operation, the dtype, and in a
  // reduction the counts.
  virtual std::shared_ptr<void> enqueue(const Batch& batch, Stream stream) = 0;

  // The next batches are recorded into graphs, which may live for longer than this, and be launched at any time.
  virtual void capturing() {}

  // What went wrong since, in the library's words. Cheap.
  virtual std::optional<std::string> failure() = 0;

  // Ends the operations in flight, which are on these streams, and makes later ones fail. Wants the device to be
  // current, if it still can be. May be called from any thread and again.
  virtual void abort(std::span<const Stream> busy) noexcept = 0;

  // Collective: when every rank's operations are done.
  virtual void close() = 0;
};

// Where the ranks of a new communicator find each other.
struct Joining {
  Rank rank = 0;
  int size = 1;
  std::string root;        // of rank 0's Vendor::new_root()
  std::string rank_table;  // path of a rank table to use instead, where the vendor has such; usually empty
  // To be called every few milliseconds while the vendor's library waits for the others. Throws when that has to end.
  std::function<void()> look;
};

// A vendor's libraries in this process.
class Vendor {
 public:
  virtual ~Vendor() = default;

  // "NCCL 2.32.3": what all ranks of a group must have alike.
  virtual std::string version() const = 0;
  virtual std::unique_ptr<Device> device(int index) = 0;
  // The index of the device in whose memory the pointer lies; nothing for any other memory.
  virtual std::optional<int> device_of(const void* pointer) = 0;
  // A byte string that the other ranks need to find rank 0.
  virtual std::string new_root(Device& device) = 0;
  // Collective, blocks until all ranks are there. Throws Error(backend), or what `look` throws.
  virtual std::unique_ptr<Collectives> join(Device& device, const Joining& joining) = 0;
  // Over a communicator of the caller's, which stays the caller's. Throws Error(invalid_argument) unless its rank and
  // size are these.
  virtual std::unique_ptr<Collectives> adopt(Device& device, void* communicator, Rank rank, int size) = 0;
};

// The libraries that serve this kind of memory. Throws Error(unsupported) that lists where they were looked for.
Vendor& vendor_of(Memory memory);

}  // namespace a2a::device
