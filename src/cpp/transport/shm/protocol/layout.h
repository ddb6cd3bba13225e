// The words that ranks share: their writers, their readers and their places.
//
// A rank's words lie in its own segment. There peers write nothing but bytes into outputs to which they were invited.
// The exception is the doorbell, which lies in the memory that peers may write, beside the chunks. A reader copies what
// a peer wrote once, into a local variable, and checks it before use.
//
// All atomics that ranks share are in this file, and every access to them that needs a memory order is a step in
// protocol.h. Both are templates over the atomics, so that a model checker drives this very code (tests/model).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/transport.h"

namespace a2a::shm {

struct StdAtomics {
  template <class T>
  using atomic = std::atomic<T>;
  template <class T>
  using plain = T;  // guarded by some atomic
  static void fence(std::memory_order order) { std::atomic_thread_fence(order); }
};

constexpr size_t kCacheLine = 64;
// An operation has one stage on a host, or two. Each stage is an exchange and has a step: operation n has the steps 2n
// and 2n + 1. Lines, counters and `done` refer to steps.
constexpr uint64_t kMostStages = 2;
constexpr uint64_t step_of(uint64_t number, uint64_t stage) { return kMostStages * number + stage; }
constexpr uint64_t first_step(uint64_t number) { return step_of(number, 0); }
constexpr uint64_t last_step(uint64_t number) { return step_of(number, kMostStages - 1); }
constexpr uint64_t number_of_step(uint64_t step) { return step / kMostStages; }
// Step n uses slot n % kSlots; a slot is free again when every peer's `done` has reached n - kSlots.
constexpr uint64_t kSlots = 4;
constexpr int kMaxRanks = 1024;     // of one host
constexpr size_t kTextBytes = 448;  // of a refusal or an abort reason, zero-terminated

// The ways of a pair's bytes.
enum class Kind : uint8_t {
  none = 0,     // nothing to send
  inlined = 1,  // in the line itself
  staged = 2,   // through chunks that the two ranks hand to and fro
  shared = 3,   // one copy, from or to the peer's segment
  pointer = 4,  // one copy, from or to the peer's memory in the same process
  cma = 5,      // the receiver copies with process_vm_readv
  refused = 6,  // the sender's arguments are invalid; its refusal text has the reason
};

// The contents of a line, apart from its sequence number. Plain data: complete before `seq` is stored, constant until
// the slot is used again.
struct Head {
  uint64_t sent;           // bytes from the writer to the reader
  uint64_t expected;       // bytes the writer expects from the reader
  uint32_t sent_hash;      // of the segment sizes, 0 for fewer than two segments
  uint32_t expected_hash;  //
  uint32_t dtype;          // code | bits << 8 | lanes << 16
  uint32_t plan;           // low bits of the plan's number
  uint8_t op;              // a2a::Op
  uint8_t kind;            // Kind
  uint8_t memory;          // a2a::Memory
  uint8_t backlog;         // step minus the writer's `done` when it posted, at most kMostBacklog; and kFlag
  uint32_t
      count;  // staged: 0, or 1 + the first chunk, which comes with the line; shared, pointer, cma: runs, and kGaps
  uint64_t where;  // staged: the writer's share of the chunks; one run: its offset or address; several: their list
  uint64_t first;  // staged: chunks the writer has handed over before
};
static_assert(sizeof(Head) == 56);
constexpr uint8_t kFlag = 0x80, kMostBacklog = 0x7f;

// One per ordered pair and slot, in the segment of the sending rank. Inline payload starts at head.where, so that up to
// 16 bytes arrive with the first cache line. It continues behind this struct to the end of the line (line_bytes()).
template <class A>
struct alignas(kCacheLine) PairLine {
  typename A::template atomic<uint64_t> seq;  // the step that this line belongs to; stored last
  typename A::template plain<Head> head;
};
static_assert(sizeof(PairLine<StdAtomics>) == kCacheLine);
constexpr size_t kInlineOffset = 48;

// The length of a group's lines, and their payload. There is one line for each pair of ranks, so only groups that are
// not too large have lines for some hundred bytes.
constexpr size_t line_bytes(size_t ranks) { return (ranks <= 64 ? 10 : 2) * kCacheLine; }
constexpr size_t inline_bytes(size_t ranks) { return line_bytes(ranks) - kInlineOffset; }

// An entry of a run list, in the segment of the rank that owns the runs.
struct ListedRun {
  uint64_t where;  // offset in that segment, or address
  uint64_t bytes;
};

// An entry for a run with gaps: `run.where` is the place of the first element of its block. kGaps in Head::count says
// that all entries of the list are ListedBlocks, even if there is only one.
struct ListedBlock {
  static constexpr size_t kMostDims = 8;
  struct Dim {
    uint64_t count;
    int64_t stride;
  };
  ListedRun run;
  uint64_t begin;  // of the run in its block, in bytes
  uint64_t piece;  // bytes that lie together
  uint64_t dims;   // 0: the block is one piece
  Dim dim[kMostDims];
};
constexpr uint32_t kGaps = uint32_t{1} << 31;

// The chunks that have gone from one rank to another: their number since the communicator was made, and the last of
// them.
constexpr size_t kListed = kCacheLine - sizeof(uint64_t);  // no pair has more chunks
template <class A, size_t kEntries = kListed>
struct alignas(kCacheLine) ChunkFlow {
  typename A::template atomic<uint64_t> count;
  typename A::template plain<uint8_t> chunk[kEntries];  // chunk number i is at [i % kEntries]
};

// The owner's traffic with one peer.
template <class A, size_t kEntries = kListed>
struct Pipe {
  ChunkFlow<A, kEntries> handed;    // full chunks
  ChunkFlow<A, kEntries> returned;  // empty chunks
  // The last step for which the owner has made all its copies from the peer's own memory. Stored with release after
  // the last copy. A peer that reads n may reuse the memory that it offered in steps up to n.
  alignas(kCacheLine) typename A::template atomic<uint64_t> copied;
  // The step whose bytes the owner cannot read from the peer's memory: it asks the peer to send them in chunks.
  typename A::template atomic<uint64_t> asked;
  // 0, or 1 + the place of the owner's mailbox for the peer in its segment (mailbox.h). Stored once, when it is empty.
  typename A::template atomic<uint64_t> mailbox;
  // The step whose line the owner has rewritten because the peer asked for chunks.
  typename A::template atomic<uint64_t> rewritten;
};

// A rank's membership in one communicator. Written by its owner only.
template <class A>
struct alignas(2 * kCacheLine) RankBlock {
  alignas(kCacheLine) uint64_t uid;  // of this block; a change means that it was given up and its memory reused
  // The last step of which the owner has read all lines and copied all bytes. The owner stores it with release after
  // its last copy. A peer that reads n may reuse everything that it offered in steps up to n.
  alignas(kCacheLine) typename A::template atomic<uint64_t> done;
  // 0, 1 + the rank from or to whose memory the owner is copying, or kAnyPeer.
  typename A::template atomic<uint32_t> copying;
  // The operation that the owner started last; only for the texts of errors.
  alignas(kCacheLine) typename A::template atomic<uint64_t> started;
  typename A::template atomic<uint32_t> started_op;
  // By slot, for the text of a disagreement: bytes of a row or element, 0 if there are more than fit. Stored before the
  // lines.
  typename A::template atomic<uint32_t> unit_bytes[kSlots];
  // Notices of the operations whose lines are published, by slot. They tell peers that run the operation on a device,
  // and have no line for it, what this rank runs. Stored with release before the lines.
  typename A::template atomic<uint64_t> notice[kSlots];
  // 0, or the a2a::Code with which the owner gave up. Stored with release after abort_text; it never goes back to 0. A
  // reader looks again after it has copied from the owner's memory: if it is still 0, the copied bytes are valid.
  alignas(kCacheLine) typename A::template atomic<uint32_t> aborted;
  typename A::template atomic<uint32_t> left;  // Left; stored when the owner leaves the communicator
  // The number of bytes from which on the owner has measured CMA to be faster; 0 before it has measured.
  typename A::template atomic<uint64_t> cma_pays_from;
  // By slot, for operations that are only compared: the step in which the owner has found a disagreement. Stored after
  // the text and before `done`.
  typename A::template atomic<uint64_t> disagreement[kSlots];
  // Agreement on the survivors (shrink.cc). Each proposal is a set of ranks; the version is odd while it is written.
  alignas(kCacheLine) typename A::template atomic<uint64_t> version;
  typename A::template atomic<uint32_t> committed;  // 1: the proposal is final
  typename A::template atomic<uint64_t> alive[kMaxRanks / 64];
  typename A::template atomic<uint64_t> successor;  // offset of the block of the new group
  char abort_text[kTextBytes];
  char refusal_text[kSlots][kTextBytes];
  char disagreement_text[kSlots][kTextBytes];
};

// Encodes a notice. memory 0 means a refusal.
constexpr uint64_t notice(uint64_t number, uint8_t op, uint8_t memory) {
  return number << 16 | static_cast<uint64_t>(op) << 8 | memory;
}

// One per thread of ranks: whether it sleeps, and its last CPU. In the owner's segment, written by the owner's threads
// only.
template <class A>
struct Seat {
  alignas(kCacheLine) typename A::template atomic<uint32_t> sleepers;
  typename A::template atomic<uint32_t> cpu;  // 1 + its number, 0 when unknown; only a hint
};

// Says whether a rank views its peers' tensors (exposed_tensor.h). In its own segment; the owners of the tensors read
// it. The memory is used again for other views, but for nothing else.
template <class A>
struct Viewing {
  alignas(kCacheLine) typename A::template atomic<uint64_t> views;  // the number of the views, 0 when it has none
};

// The word that a rank sleeps on. Peers write no other word.
template <class A>
struct Bell {
  alignas(kCacheLine) typename A::template atomic<uint32_t> rings;
};

// ---- the layout of a block ----------------------------------------------------------------------------------------

using RankWords = RankBlock<StdAtomics>;
using SeatWords = Seat<StdAtomics>;
using BellWord = Bell<StdAtomics>;
using Line = PairLine<StdAtomics>;
using Flow = ChunkFlow<StdAtomics>;

// The block of one rank in a group of `size` ranks: the RankBlock, kSlots rows of lines (one per peer), one pipe per
// peer. For the owner's own block and, through a pointer to const, for a peer's read-only mapping.
class Block {
 public:
  using Pair = Pipe<StdAtomics>;

  Block() = default;
  Block(std::byte* base, int size) : base_(base), size_(static_cast<size_t>(size)), line_bytes_(line_bytes(size_)) {}

  static constexpr size_t bytes(int size) {
    const auto n = static_cast<size_t>(size);
    return sizeof(RankWords) + n * (kSlots * line_bytes(n) + sizeof(Pair));
  }

  // The largest payload of one of its lines.
  size_t inline_bytes() const { return line_bytes_ - kInlineOffset; }
  RankWords& words() const { return *reinterpret_cast<RankWords*>(base_); }
  Line& line(uint64_t n, int peer) const {
    const size_t index = (n % kSlots) * size_ + static_cast<size_t>(peer);
    return *reinterpret_cast<Line*>(base_ + sizeof(RankWords) + index * line_bytes_);
  }
  Pair& pipe(int peer) const {
    const size_t at = sizeof(RankWords) + kSlots * size_ * line_bytes_ + static_cast<size_t>(peer) * sizeof(Pair);
    return *reinterpret_cast<Pair*>(base_ + at);
  }

 private:
  std::byte* base_ = nullptr;
  size_t size_ = 0;
  size_t line_bytes_ = 0;
};
static_assert(sizeof(RankWords) % (2 * kCacheLine) == 0);

}  // namespace a2a::shm
