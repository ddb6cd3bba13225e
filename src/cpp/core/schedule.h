// From a plan to what a transport runs: memory runs, their order, and their splitting. Pure functions, no I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "a2a/plan.h"
#include "a2a/strides.h"
#include "a2a/types.h"
#include "core/fold/weighted_sum.h"
#include "core/strided/strides.h"

namespace a2a {

// A piece of memory that goes to, or is filled by, a peer: contiguous, or a stretch of a block with gaps.
struct Run {
  Rank peer = 0;
  std::byte* data = nullptr;  // a send run is only read
  size_t bytes = 0;
  const Strides* strides = nullptr;  // of the block whose first element `data` is; none: contiguous
  size_t begin = 0;                  // where the run begins in that block, in bytes; 0 where it is contiguous
  uint32_t shape = 0;                // hash of the block's shape, where both ends compare it

  bool operator==(const Run&) const = default;

  // Where byte `at` of the run lies, and how many of its bytes follow there without a gap, that one included.
  std::byte* place(size_t at) const { return data + (strides == nullptr ? static_cast<ptrdiff_t>(at) : offset(at)); }
  size_t together(size_t at) const {
    return strides == nullptr ? bytes - at : std::min(bytes - at, strides->together(begin + at));
  }
  // `count` bytes of it, from `at` on.
  Run part(size_t at, size_t count) const {
    return strides == nullptr ? Run{peer, data + at, count} : Run{peer, data, count, strides, begin + at};
  }
  // The memory between its first byte and its last, gaps included.
  std::span<std::byte> memory() const;

 private:
  ptrdiff_t offset(size_t at) const { return strides->offset(begin + at); }
};

// Whether any of them has gaps.
A2A_API bool has_gaps(std::span<const Run> runs);

// Copies bytes from `at` on to packed memory, and back.
A2A_API void gather(const Run& run, size_t at, size_t bytes, std::byte* to);
A2A_API void scatter(const Run& run, size_t at, size_t bytes, const std::byte* from);

// What all ranks must agree on besides the bytes.
struct Signature {
  Op op = Op::alltoallv;
  Memory memory = Memory::host;
  DType dtype;
  uint64_t number = 0;     // of the operation on its communicator, from 1
  uint64_t plan = 0;       // of the reusable plan, from 1; 0 = made for this call
  Fold fold = Fold::none;  // of a reduction: what becomes of the parts that arrive
  // Of a first half: as many elements as all ranks have, modulo 2^32. So a rank that has another number of them
  // disagrees with every other rank, and the half fails on all or on none. A transport may compare all that ranks have
  // alike by such a number in other operations, too.
  uint32_t elems = 0;
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

// Some operations are two exchanges: the second one begins when the first one is over, sends what that has received,
// and fails with its error.
enum class Half : uint8_t { whole, first, second };

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
  Half half = Half::whole;
  // Likewise: what takes up caches and memory meanwhile as if the rank sent and received it here, in bytes.
  size_t sent_elsewhere = 0, received_elsewhere = 0;
};

// One operation as a transport gets it. Runs are sorted by peer and keep the plan's order within a peer; runs to this
// rank itself are included. In a reduction the receives of all peers are the same runs, the output, into which what
// arrives is folded; the output may be what the rank sends to itself.
struct Batch : Terms {
  std::vector<Run> sends, recvs;
  std::shared_ptr<const std::vector<Strides>> strides;  // of the runs; empty where all are contiguous
  std::shared_ptr<const std::byte[]> copy;              // what runs of `sends` lie in, where the batch owns it
  WeightedSum sum;      // of the rows that arrive, where it has summands: the receives only say how many bytes come
  std::string refusal;  // not empty: this rank's arguments were bad, and this is why; there are no runs then

  // As a new one, but the lists keep their memory.
  void clear();
  void swap(Batch& other) noexcept;
};

// One side of a plan and its buffers.
struct Buffers {
  std::span<const Segment> segments;
  std::span<std::byte* const> base;       // the address of each buffer
  std::span<const TensorLayout> layouts;  // of each; empty: all are packed
};

// Puts the runs of a plan into the batch, instead of what is there. Throws Error(invalid_argument) for a layout that
// has too many dimensions, or that the segments do not divide along its axis.
A2A_API void set_runs(Batch& batch, const Buffers& sends, const Buffers& recvs);

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

// Copies this rank's self sends into its self receives, which have as many bytes (checked by the caller). Memory may
// overlap: everything is received as it was before the call.
A2A_API void copy_self(std::span<const Run> sends, std::span<const Run> recvs, Rank rank);

}  // namespace a2a
