// Groups that change: a standing way to reach a process, from which it joins one group after the other.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "a2a/bootstrap.h"
#include "a2a/communicator.h"
#include "a2a/types.h"

namespace a2a {

// One member of future groups: a process, or a thread that is a rank. It has one listening socket and no thread. It
// cannot be used in a forked child (Error(aborted)). Any thread may call any function; connect() in one at a time.
class A2A_API Endpoint {
 public:
  struct Options {
    // "host", "host:port" or "[IPv6]:port", of an interface of this host, for groups across hosts; requires a secret.
    // Empty: groups of this host alone, through an abstract Unix socket.
    std::string address;
    // All endpoints of a job have the same one, of at least 16 bytes. Empty: Unix sockets go by user ids, and require
    // the secret of A2A_SECRET or A2A_SECRET_FILE where ids do not tell users apart.
    std::string secret;
    // The name of its host: endpoints of one name share memory. Empty: as A2A_HOSTS and the kernel say.
    std::string host;
    Communicator::Options communicator = {};  // of the communicators that it makes
  };

  // Throws Error(invalid_argument) for an address that this host does not have, an address without a secret, and a
  // secret that is too short.
  static std::shared_ptr<Endpoint> create(Options options);
  ~Endpoint();  // its communicators stay

  // Returns what others need in order to reach it. It is printable, and proves that its maker knows the secret. It
  // tells nothing that lets anybody in who has not got the secret, or another user of this host. It is valid as long as
  // this object.
  const std::string& handle() const;

  // Collective over the endpoints listed, and over nobody else: makes the communicator of this generation, in which
  // rank i is handles[i]. All give the same list and the same number, which none of them has used before. The former
  // communicator of this endpoint is aborted first; what the two groups share (segments, mappings, connections) is
  // kept. Without a deadline the options' timeout counts.
  //
  // Throws Error(invalid_argument) when the list has no handle of this endpoint, an invalid handle, one twice, or one
  // of another job, and when the generation is negative or "already used"; the others get Error(mismatch).
  // Error(mismatch) when lists or generations disagree. Error(peer_lost) when a listed process is dead. Error(timeout)
  // when one does not come. Error(unsupported) when one is on another host and has no address. The endpoint is as
  // usable after an error as before. Only Error(invalid_argument) leaves the former communicator as it is.
  //
  // `joined`, if given, gets the ranks whose former group was another one than that of the lowest rank that had one:
  // the same on all ranks, and empty in the first generation.
  std::shared_ptr<Communicator> connect(std::span<const std::string> handles, int64_t generation,
                                        std::optional<Deadline> deadline = {}, std::vector<Rank>* joined = nullptr);

  // For callers that check arguments of their own: tells the endpoints listed that this one does not take part, and
  // why. Those who wait for it, or come within 0.3 s, throw Error(mismatch).
  void decline(std::span<const std::string> handles, std::string_view why);

  // Returns the last generation in which it is or was, -1 before the first.
  int64_t generation() const;

 private:
  struct State;
  explicit Endpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace a2a
