// One pair of ranks in one operation: what a way of its bytes works on.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/facts.h"
#include "core/fold/fold.h"
#include "core/fold/summing.h"
#include "core/schedule.h"
#include "transport/shm/copy/copy.h"
#include "transport/shm/copy/pages.h"
#include "transport/shm/peers/membership.h"
#include "transport/shm/policy/choose.h"

namespace a2a::shm {

// What this rank owes to, and still wants from, one peer in one operation. To itself only bytes are left.
struct alignas(kCacheLine) Pair {
  enum class Out : uint8_t { settled, streaming, unacknowledged, putting };
  enum class In : uint8_t { awaited, inlined, streaming, pulling, asking, expecting, arrived };

  // What every operation needs comes first, in three cache lines.
  Out out = Out::settled;
  In in = In::awaited;
  Head mine{};         // this rank's line: the facts, and how the bytes travel once that was decided
  Head theirs{};       // the peer's line, once it was seen
  size_t in_left = 0;  // bytes still to come
  Cursor source;       // what is left to stage of the sends
  Cursor target;       // what is left to fill of the receives

  uint64_t out_first = 0;                // the number of the first chunk staged
  uint64_t out_handed = 0;               // chunks staged
  uint64_t out_left = 0;                 // chunks still to stage
  std::vector<Run> listed;               // the peer's runs, from which bytes are pulled or to which they are put
  std::vector<Strides> listed_strides;   // of those that have gaps
  Cursor remote;                         // what is left of them
  std::vector<std::byte> read;           // of a reduction: what the kernel has copied from there
  std::span<const std::byte> read_left;  // and was not folded yet
  size_t summed = 0;                     // of a weighted sum: bytes

  // The bytes of the next chunk to stage.
  size_t next_out(size_t full) const { return out_left > 1 ? full : (mine.sent - 1) % full + 1; }

  Kind kind() const { return static_cast<Kind>(mine.kind); }
  Kind their_kind() const { return static_cast<Kind>(theirs.kind); }

  void begin(const Head& common, std::span<const Run> sends, std::span<const Run> recvs) {
    out = Out::settled;
    in = In::awaited;
    mine = common;
    add_sizes(mine, sends, recvs);
    source = {sends};
    target = {recvs};
    in_left = 0;
    out_handed = 0;
  }
};

// An operation as its pairs see it.
struct Operation {
  Operation(Rank own, int size) : rank(own), pairs(static_cast<size_t>(size)) {}

  Batch batch;
  Rank rank;
  std::vector<Pair> pairs;
  Load load;
  Stores stores = Stores::cached;   // of what is received
  size_t lists = 0;                 // how many lists of runs it has in the segment
  Run for_all;                      // a copy in the segment of what goes to all peers alike, if there is one
  HugePages huge_pages;             // in what is sent
  std::optional<bool> all_present;  // see are_present(): what is sent
  std::optional<Folder> folder;     // of a reduction
  std::optional<Summing> summing;   // of a weighted sum

  // Whether what arrives is not copied, but calculated with.
  bool calculates() const { return folder.has_value() || summing.has_value(); }

  // Takes over a batch; gives the memory of the last one's lists for it.
  void begin(Batch&& batch);

  uint64_t step() const {
    const uint64_t n = batch.signature.number;
    return batch.half == Half::second ? last_step(n) : first_step(n);
  }
  Pair& pair(Rank peer) { return pairs[static_cast<size_t>(peer)]; }
  const Pair& pair(Rank peer) const { return pairs[static_cast<size_t>(peer)]; }
  Pair& own() { return pair(rank); }
  const Pair& own() const { return pair(rank); }

  // Whether this rank's own part stays where it is, or parts of one buffer overlap: nothing of it was copied yet then,
  // and it takes care, and segments that are cut alike. Between parts of the library nothing overlaps, and they may be
  // cut differently.
  bool own_in_place() const;
};

struct Link {
  Link(Membership& membership, Operation& of, Rank with)
      : m(membership), operation(of), peer(with), pair(of.pair(with)), other(membership.peer(with)) {}

  Membership& m;
  Operation& operation;
  const Rank peer;
  Pair& pair;
  Peer& other;

  uint64_t step() const { return operation.step(); }
  Neighbour& host() const { return *other.host; }
  // What this rank has sent to the peer and taken from it, and the other way round.
  Block::Pair& own_pipe() const { return m.block().pipe(peer); }
  const Block::Pair& their_pipe() const { return other.block.pipe(m.rank()); }
  Line& own_line() const { return m.block().line(step(), peer); }
  const Line& their_line() const { return other.block.line(step(), m.rank()); }
  // Whether the peer has made all its copies from or to this rank's memory.
  bool peer_has_copied() const { return is_copied(their_pipe(), step()); }
  // "alltoall #4: rank 2", for messages.
  std::string name() const;

  [[noreturn]] void nonsense(const char* what) const { m.nonsense(peer, what); }
};

}  // namespace a2a::shm
