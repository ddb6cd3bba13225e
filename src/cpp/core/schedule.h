// From a plan to what a transport runs: memory runs, their order, and their splitting. Pure functions, no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "a2a/plan.h"
#include "a2a/types.h"

namespace a2a {

// One contiguous piece of memory that goes to, or is filled by, a peer.
struct Run {
  Rank peer = 0;
  std::byte* data = nullptr;  // a send run is only read
  size_t bytes = 0;

  bool operator==(const Run&) const = default;
};

// What all ranks must agree on besides the bytes.
struct Signature {
  Op op = Op::alltoallv;
  Memory memory = Memory::host;
  DType dtype;
  uint64_t number = 0;  // of the operation on its communicator, from 1
  uint64_t plan = 0;    // of the reusable plan, from 1; 0 = made for this call
};

// "alltoallv #146"
A2A_API std::string name_of(const Signature& signature);
// "; rank 2 has come", "; ranks 0, 2 have come", of many the first; nothing for none.
std::string have_come(std::span<const Rank> ranks);

// How much of an operation the host transport does.
enum class Way : uint8_t {
  exchange,  // compares the facts and moves the bytes
  compare,   // compares the facts: a device transport moves the bytes
  pass,      // nothing: a device transport moves the bytes
};

// What an operation is besides its bytes.
struct Terms {
  Signature signature;
  size_t unit_bytes = 1;  // bytes of one row or element, only for messages
  Deadline deadline = Deadline::never();
  Way way = Way::exchange;
  bool at_most = false;       // between parts of the library: peers may send less than the receives have room for
  bool last_look = false;     // likewise: when it fails, the lines that are there by then are still read
  bool remark = false;        // likewise: something to tell the peers that is not compared
  bool asynchronous = false;  // the caller, or on a device its stream, runs on meanwhile
  bool own_last = false;      // likewise: the rank's own part, if it is large, waits until it is told to go
  // Likewise: what takes up caches and memory meanwhile as if the rank sent and received it here, in bytes.
  size_t sent_elsewhere = 0, received_elsewhere = 0;
};

// One operation as a transport gets it. Runs are sorted by peer and keep the plan's order within a peer; runs to this
// rank itself are included.
struct Batch : Terms {
  std::vector<Run> sends, recvs;
  std::string refusal;  // not empty: this rank's arguments were bad, and this is why; there are no runs then

  // As a new one, but the lists keep their memory.
  void clear();
  void swap(Batch& other) noexcept;
};

// The only place that knows that a segment is one contiguous piece of memory: calls visit(peer, pointer, bytes) for
// each run of each segment, in order. base[i] is the address of buffer i.
template <class Visit>
void for_each_run(std::span<const Segment> segments, std::span<std::byte* const> base, Visit&& visit) {
  for (const Segment& s : segments) visit(s.peer, base[static_cast<size_t>(s.buffer)] + s.offset, s.bytes);
}

// Puts the runs of a plan over these buffers into the list, instead of what is there.
A2A_API void set_runs(std::vector<Run>& runs, std::span<const Segment> segments, std::span<std::byte* const> base);

// The runs of one peer in a list sorted by peer.
A2A_API std::span<const Run> runs_with(std::span<const Run> runs, Rank peer);

// The same for all peers in turn, from rank 0: takes the runs of the next peer off the front of the list.
inline std::span<const Run> take_runs(std::span<const Run>& rest, Rank peer) {
  size_t count = 0;
  while (count < rest.size() && rest[count].peer == peer) ++count;
  const std::span<const Run> taken = rest.first(count);
  rest = rest.subspan(count);
  return taken;
}

// Who a rank talks to at step k of a rotation, k = 0 .. size-1: it sends to send_peer and receives from recv_peer, so
// that at every step each rank is the target of exactly one other. Step 0 is the rank itself.
constexpr Rank send_peer(Rank rank, int size, int step) { return rank + step - (rank + step < size ? 0 : size); }
constexpr Rank recv_peer(Rank rank, int size, int step) { return rank - step + (rank < step ? size : 0); }

// The runs of each step, from step 0 on. Walks through both lists once, where runs_with() searches.
class A2A_API Rotation {
 public:
  struct Step {
    std::span<const Run> sends, recvs;
  };
  Rotation(std::span<const Run> sends, std::span<const Run> recvs, Rank rank, int size);
  Step next();

 private:
  std::span<const Run> sends_, recvs_;
  Rank to_, from_;  // of the next step
  int size_;
  size_t send_at_;  // sends go up from here, and on from rank 0
  size_t recv_at_;  // receives go down from before here, and on from the last rank
};

// The same exchange in an order and in portions a transport can post: batch i holds the sends and receives of `window`
// consecutive rotation steps (0 = all steps at once). The self runs are in the first batch. No run is longer than
// max_bytes: longer ones are cut in pieces alike on both sides, so the matching rule still holds within each pair.
// Throws Error(invalid_argument) when window is negative or max_bytes is 0.
struct Portion {
  std::vector<Run> sends, recvs;
};
A2A_API std::vector<Portion> portions(std::span<const Run> sends, std::span<const Run> recvs, Rank rank, int size,
                                      int window, size_t max_bytes);

// Copies this rank's self sends into its self receives. Sizes agree run by run (checked by the caller). Memory may
// overlap: everything is received as it was before the call.
A2A_API void copy_self(std::span<const Run> sends, std::span<const Run> recvs, Rank rank);

}  // namespace a2a
