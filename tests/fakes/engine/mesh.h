// Links between the ranks of a communicator: threads of one process, forked processes, or unrelated ones.
//
// Ranks meet at sockets in the abstract namespace, named by what the communicator's ranks share. Afterwards each pair
// has a socket, on which messages are announced, answered (accepted, or refused by a receiver that expects another) and
// moved. The k-th message announced to a peer is for the k-th receive that this peer posts for its sender.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/controls.h"
#include "engine/memory.h"

namespace fake {

// What the sender of a message says of it.
struct Header {
  uint32_t kind = 0;  // which call it belongs to; the double's own numbers
  int32_t dtype = -1;
  uint64_t number = 0;  // collective calls are counted, others say 0
  uint64_t count = 0;   // elements
  uint64_t bytes = 0;
};

// One message of an operation, seen from one of its ends.
struct Part {
  int peer;
  Region memory;
  Header header;
};

// What happens when a message is not what its receiver expects.
enum class OnMismatch {
  diagnose,  // both ends fail, and say what they have; their other messages are delivered
  hang,      // neither end ever finishes
  truncate,  // what fits is delivered, and nobody is told
};

struct Rules {
  bool bytes_only = false;  // count and dtype may differ as long as the bytes agree
  OnMismatch on_mismatch = OnMismatch::diagnose;
  std::function<std::string(const Header&)> describe;
};

class Mesh {
 public:
  // Waits for all ranks of that name. Fails by a timeout, or when ranks disagree about the size, or two have one rank.
  static Failure connect(const std::string& name, int rank, int size, double seconds, const std::function<bool()>& stop,
                         std::shared_ptr<Mesh>& made);
  ~Mesh();

  // Sends and receives all parts, those with this rank itself included; `stop` ends it.
  Failure exchange(const std::vector<Part>& sends, const std::vector<Part>& recvs, const Rules& rules,
                   const std::function<bool()>& stop, std::optional<Clock::time_point> deadline);

  // A host call's own exchange: each rank's text, in rank order. `topic` tells one from another.
  Failure gather(const std::string& topic, const std::string& mine, const std::function<bool()>& stop,
                 std::vector<std::string>& all);
  // The same with some peers only, in two halves; what they say is dropped.
  void announce(const std::string& topic, const std::vector<int>& peers);
  Failure await(const std::string& topic, const std::vector<int>& peers, const std::function<bool()>& stop);

  // Tells the peers that this rank leaves in order; what they still wait for from it then fails.
  void leave();
  // Waits until all others have left or died.
  void await_leaving(const std::function<bool()>& stop);
  // Ends everything, as the end of this process does.
  void close();

  // A peer that ended without leaving, or nothing.
  Failure lost();

  const int rank, size;

 private:
  struct Link;
  struct Frame;
  class Exchange;

  Mesh(int own_rank, int ranks);
  void read();
  void handle(Link& link, const Frame& frame);
  Failure gone(int peer) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank; none for this one
};

}  // namespace fake
