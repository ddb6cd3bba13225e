// What carries bytes between processes of different hosts: the seam that MPI and TCP implement.
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

// A process, by its number in the network.
using Endpoint = int;

// A message as it arrives.
struct Message {
  Endpoint from = 0;
  std::string bytes;
};

// Runs of memory on their way.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Whether the network has let go of the memory, as far as Network::advance() has found out. Throws what
  // went wrong, Error(backend), once.
  virtual bool done() = 0;
  // Nobody waits for it any more. The network may let go earlier, or when it likes.
  virtual void abandon() noexcept = 0;
  // Of a receive for which nothing was or will be sent: the network lets go of the memory soon, and neither end
  // remembers it.
  virtual void withdraw() noexcept = 0;
};

// That a process is gone without having left the network in order.
struct Loss {
  Deadline::Clock::time_point since;
  std::string how;  // for messages: "its connection was closed (pid 17 at 10.0.0.3)"
};

// All functions may be called from any thread and never wait for a peer. They throw Error(backend) with the library's
// words when it fails.
class Network {
 public:
  // A transfer of so many bytes begins when both ends are ready.
  static constexpr size_t kLarge = size_t{256} << 10;

  // Who has to know when the network ends before the process does, as MPI does when the program finalises it.
  class User {
   public:
    virtual ~User() = default;
    // The network can still be used for a last word; afterwards it carries nothing, and says why.
    virtual void network_ends(const Error& why) noexcept = 0;
  };

  virtual ~Network() = default;

  // A user enters once, and leaves before it is destroyed. leave() waits for a call of network_ends() that is under
  // way.
  virtual void enter(User*) {}
  virtual void leave(User*) noexcept {}
  // What broke a user, and whether it knows of a process that died: that one will not come to the network's end.
  virtual void broke(Code, bool) noexcept {}

  virtual Endpoint self() const = 0;
  virtual int size() const = 0;
  // For messages: "MPI (libmpi.so.12, MPICH 5.0.2)"
  virtual std::string name() const = 0;

  // Sends a message of any kind. Messages between two processes may overtake each other.
  virtual void post(Endpoint to, std::string bytes) = 0;
  // The next message of a channel, if one has arrived. Each message begins with its channel (see channel_of).
  virtual std::optional<Message> take(uint64_t channel) = 0;
  // Whether all messages have left this process: until then somebody has to call take().
  virtual bool flushed() = 0;
  // Whether a process is lost, as far as the network can tell. Everything that has come from there was there to take()
  // before.
  virtual std::optional<Loss> lost(Endpoint) { return std::nullopt; }
  // Messages of a channel that was closed are thrown away. Channels are never used twice.
  virtual void close(uint64_t channel) noexcept = 0;

  // Memory that is sent and received without a copy here. The tag pairs the two ends; both have runs of the same
  // lengths. Those of one tag are paired in their order, if either all or none of them have kLarge bytes or more.
  // next_tag() gives the sender one that no unfinished transfer to that process has. The list of runs lasts as long as
  // the transfer.
  virtual uint32_t next_tag(Endpoint to) = 0;
  // Whether that tag may be used once more. Only so many are given out before they come round again.
  virtual bool fresh(Endpoint to, uint32_t tag) const = 0;
  virtual std::unique_ptr<Transfer> send(Endpoint to, uint32_t tag, std::span<const Run> runs) = 0;
  virtual std::unique_ptr<Transfer> receive(Endpoint from, uint32_t tag, std::span<const Run> runs) = 0;
  // Receives what one send() of a single run sends there, and throws it away.
  virtual std::unique_ptr<Transfer> discard(Endpoint from, uint32_t tag, size_t bytes) = 0;
  // One look at all transfers: moves what can move, and finds out which are done.
  virtual void advance() = 0;

  // Goes up whenever bytes of a transfer have moved, where the network knows: whoever waits for it does not sleep then.
  virtual uint64_t moved() const { return 0; }
  // Messages and transfers that this process has sent.
  virtual uint64_t sent() const = 0;
};

}  // namespace a2a::hosts
