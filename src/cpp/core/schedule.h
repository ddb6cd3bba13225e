// Turns a plan into runs of memory for a transport, orders them, and cuts them. Pure functions, no I/O.
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
#include "core/scratch.h"
#include "core/strided/strides.h"

namespace a2a {

class FanOut;

// The most bytes that a transport copies or folds at a time, before it serves its other peers and operations, deadlines
// and aborts.
inline constexpr size_t kStepBytes = size_t{4} << 20;

// Memory that is sent to a peer or filled by it: contiguous, or a part of a block with gaps.
struct Run {
  Rank peer = 0;
  std::byte* data = nullptr;  // a send run is only read
  size_t bytes = 0;
  const Strides* strides = nullptr;  // of the block whose first element `data` is; none: contiguous
  size_t begin = 0;                  // where the run begins in that block, in bytes; 0 where it is contiguous
  uint32_t shape = 0;                // hash of the block's shape, or the segment's label, where both ends compare it

  bool operator==(const Run&) const = default;

  // place() returns the address of byte `at` of the run; together() returns how many bytes follow from there without a
  // gap, that one included.
  std::byte* place(size_t at) const { return data + (strides == nullptr ? static_cast<ptrdiff_t>(at) : offset(at)); }
  size_t together(size_t at) const {
    return strides == nullptr ? bytes - at : std::min(bytes - at, strides->together(begin + at));
  }
  // Returns the part of `count` bytes from `at` on.
  Run part(size_t at, size_t count) const {
    return strides == nullptr ? Run{peer, data + at, count} : Run{peer, data, count, strides, begin + at};
  }
  // Returns the memory between its first byte and its last, gaps included.
  std::span<std::byte> memory() const;

 private:
  ptrdiff_t offset(size_t at) const { return strides->offset(begin + at); }
};

// Whether any of them has gaps.
A2A_API bool has_gaps(std::span<const Run> runs);

// Copy the bytes from `at` on to packed memory, and back.
A2A_API void gather(const Run& run, size_t at, size_t bytes, std::byte* to);
A2A_API void scatter(const Run& run, size_t at, size_t bytes, const std::byte* from);

// The facts besides the bytes on which all ranks must agree.
struct Signature {
  Op op = Op::alltoallv;
  Memory memory = Memory::host;
  DType dtype;
  uint64_t number = 0;     // of the operation on its communicator, from 1
  uint64_t plan = 0;       // of the reusable plan, from 1, or of the routing; 0 = made for this call
  Fold fold = Fold::none;  // of a reduction: how the arriving parts are combined
  uint32_t agreement = 0;  // Plan::agreement()
};

// "alltoallv #146"
A2A_API std::string name_of(const Signature& signature);
// Returns "; rank 2 has come", "; ranks 0, 2 have come", with the first of many ranks; "" for none.
std::string have_come(std::span<const Rank> ranks);

// The part of an operation that the host transport does.
enum class Way : uint8_t {
  exchange,  // compares the facts and moves the bytes
  compare,   // compares the facts: a device transport moves the bytes
  pass,      // nothing: a device transport moves the bytes
};

// The properties of an operation besides its bytes.
struct Terms {
  Signature signature;
  size_t unit_bytes = 1;  // bytes of one row or element, only for messages
  Deadline deadline = Deadline::never();
  Way way = Way::exchange;
  bool at_most = false;       // internal use: peers may send fewer bytes than the receives have room for
  bool last_look = false;     // internal use: after a failure the lines that have arrived are still read
  bool flag = false;          // internal use: a bit for the peers that is not compared
  bool asynchronous = false;  // the caller, or on a device its stream, goes on meanwhile
  bool own_last = false;      // internal use: the rank's own part, if it is large, waits until it is released
  // The stage's number. Each begins on a rank when the one before is done there, and fails with its error.
  uint8_t stage = 0;
  bool last = true;  // no other stage follows
  // Internal use: bytes that use caches and memory meanwhile as if the rank sent and received them here.
  size_t sent_elsewhere = 0, received_elsewhere = 0;
};

// A stage as a transport gets it. Runs are sorted by peer and keep the plan's order within a peer; runs to this rank
// itself are included. In a fold the receives of all peers are the same runs, the output, into which arriving parts are
// folded. The output may be the memory that the rank sends to itself.
struct Moves {
  std::vector<Run> sends, recvs;
  bool folds = false;
  Reach reach = Reach::group;
  std::vector<FoldPart> parts;  // Stage::parts
};

// One operation as a transport gets it: its first stage, and the later ones.
struct Batch : Terms, Moves {
  std::vector<Moves> later;
  std::shared_ptr<const std::vector<Strides>> strides;  // of all runs; empty where all are contiguous
  std::shared_ptr<std::byte[]> scratch;                 // the memory of Space::scratch
  std::shared_ptr<std::byte[]> copy;                    // the memory of runs in `sends` that the batch owns
  // Before anything is sent, `copy` is filled with these, one after the other: what is sent is overwritten meanwhile.
  std::vector<Run> packs;
  std::shared_ptr<const void> pack_strides;  // holds those of `packs`
  WeightedSum sum;  // if it has summands: arriving rows are summed, and the receives only give their bytes
  std::shared_ptr<FanOut> fan_out;  // if there is one: rows that have arrived are copied within the output
  std::string refusal;              // not empty: why this rank's arguments were refused; then there are no runs

  // Resets all fields; the lists keep their memory.
  void clear();
  void swap(Batch& other) noexcept;
  // Fills `copy`. A transport calls it before it reads what is sent, once nothing earlier uses that memory.
  void pack() const;
};

// One side of a stage and its buffers.
struct Buffers {
  std::span<const Segment> segments;
  std::span<std::byte* const> base;       // the address of each buffer
  std::span<const TensorLayout> layouts;  // of each buffer; empty: all are packed
};

// Replaces the runs of the batch by those of a stage whose segments lie in the caller's buffers. Throws
// Error(invalid_argument) for a layout that has too many dimensions, or that the segments do not divide along its axis.
A2A_API void set_runs(Batch& batch, const Buffers& sends, const Buffers& recvs);

// Fills an empty batch with the runs of all stages. Takes their scratch memory. Does not look at Buffers::segments.
// Throws as set_runs(), and std::bad_alloc.
A2A_API void set_stages(Batch& batch, const Plan& plan, const Buffers& send, const Buffers& recv, Scratch& scratch);

// Returns a batch for each stage.
A2A_API std::vector<Batch> split_stages(Batch&& batch);

// The runs of one peer in a list sorted by peer.
A2A_API std::span<const Run> runs_with(std::span<const Run> runs, Rank peer);

// Takes the runs of the next peer off the front of the list. For all peers in turn, from rank 0.
inline std::span<const Run> take_runs(std::span<const Run>& rest, Rank peer) {
  size_t count = 0;
  while (count < rest.size() && rest[count].peer == peer) ++count;
  const std::span<const Run> taken = rest.first(count);
  rest = rest.subspan(count);
  return taken;
}

// The peers of a rank at step k of a rotation, k = 0 .. size-1: it sends to send_peer and receives from recv_peer, so
// that at every step each rank is the target of exactly one other. Step 0 is the rank itself.
constexpr Rank send_peer(Rank rank, int size, int step) { return rank + step - (rank + step < size ? 0 : size); }
constexpr Rank recv_peer(Rank rank, int size, int step) { return rank - step + (rank < step ? size : 0); }

// Iterates over the runs of each step, from step 0 on. It walks through both lists once, while runs_with() searches.
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

// Copies this rank's sends to itself into its receives from itself. Requires that both have the same bytes. Memory may
// overlap: the sources are read as they were before the call.
A2A_API void copy_self(std::span<const Run> sends, std::span<const Run> recvs, Rank rank);

}  // namespace a2a
