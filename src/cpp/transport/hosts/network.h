// The seam that MPI and TCP implement: it carries bytes between processes of different hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "a2a/types.h"
#include "core/schedule.h"

namespace a2a::hosts {

// The number of a process in the network.
using Process = int;

// A received message.
struct Message {
  Process from = 0;
  std::string bytes;
};

// A send or receive of runs of memory in flight.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Whether the network no longer uses the memory, as of the last Network::advance(). Throws Error(backend), once, when
  // the transfer failed.
  virtual bool done() = 0;
  // Call when nobody waits for it any more. The network may release the memory earlier, or later.
  virtual void abandon() noexcept = 0;
  // Call for a receive whose send was not and will not be posted. The network releases the memory soon, and neither end
  // remembers the receive.
  virtual void withdraw() noexcept = 0;
};

// A process that is gone without having left the network.
struct Loss {
  Deadline::Clock::time_point since;
  std::string how;  // for the texts of errors: "its connection was closed (pid 17 at 10.0.0.3)"
};

// Any thread may call any function. None waits for a peer. They throw Error(backend) with the library's text when it
// fails.
class Network {
 public:
  // A transfer of so many bytes or more is a rendezvous: it begins when both ends are ready.
  static constexpr size_t kLarge = size_t{256} << 10;

  // A user of the network that has to know when it ends before the process does: MPI ends when the program finalises
  // it.
  class User {
   public:
    virtual ~User() = default;
    // Called before the network ends; it can still send. Afterwards it carries nothing, and its functions throw `why`.
    virtual void network_ends(const Error& why) noexcept = 0;
  };

  virtual ~Network() = default;

  // A user enters once, and leaves before it is destroyed. leave() waits for a call of network_ends() in progress.
  virtual void enter(User*) {}
  virtual void leave(User*) noexcept {}
  // Tells the network that a user broke with that code, and whether the user knows of a process that died. The end of
  // the network does not wait for such a process.
  virtual void broke(Code, bool) noexcept {}

  virtual Process self() const = 0;
  virtual int size() const = 0;
  // Names the network, for the texts of errors: "MPI (libmpi.so.12, MPICH 5.0.2)"
  virtual std::string name() const = 0;

  // Whether the others go on when a process dies, and lost() says which did.
  virtual bool survives_deaths() const { return false; }

  // Whether a thread that the program knows nothing of may call these functions, as a progress thread does.
  virtual bool serves_any_thread() const { return false; }

  // Sends a message. Messages between two processes may overtake each other.
  virtual void post(Process to, std::string bytes) = 0;
  // Returns the next message of a channel, if one has arrived. Each message begins with its channel (see channel_of).
  virtual std::optional<Message> take(uint64_t channel) = 0;
  // Whether all messages have left this process. Until then somebody has to call take().
  virtual bool flushed() = 0;
  // Returns how a process was lost, if the network knows. take() has returned, or can return, all that came from it
  // before.
  virtual std::optional<Loss> lost(Process) { return std::nullopt; }
  // Closes a channel: its messages are discarded. A channel is never used again.
  virtual void close(uint64_t channel) noexcept = 0;

  // Sends and receives of memory without a copy here. The tag pairs the two ends; both have runs of the same lengths.
  // Transfers of one tag are paired in order, if either all or none of them have kLarge bytes or more. next_tag()
  // returns a tag that no unfinished transfer to that process has. The list of runs must outlive the transfer.
  virtual uint32_t next_tag(Process to) = 0;
  // Whether that tag may be used again. Tags come round, so an old one may be another transfer's.
  virtual bool fresh(Process to, uint32_t tag) const = 0;
  virtual std::unique_ptr<Transfer> send(Process to, uint32_t tag, std::span<const Run> runs) = 0;
  virtual std::unique_ptr<Transfer> receive(Process from, uint32_t tag, std::span<const Run> runs) = 0;
  // Receives the bytes of one send() of a single run, and discards them.
  virtual std::unique_ptr<Transfer> discard(Process from, uint32_t tag, size_t bytes) = 0;
  // Advances all transfers, and finds out which are done.
  virtual void advance() = 0;

  // Returns a descriptor to sleep on: it is readable while there is something to look at. -1 where the network has
  // none, or where a look is due already. The network keeps it open.
  virtual int events() { return -1; }

  // A count that increases whenever bytes of a transfer have moved, where the network knows. A waiting rank does not
  // sleep then.
  virtual uint64_t moved() const { return 0; }
  // The number of messages and transfers that this process has sent.
  virtual uint64_t sent() const = 0;
};

}  // namespace a2a::hosts
