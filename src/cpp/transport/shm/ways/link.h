// The state of one pair of ranks, on which the ways work: in one operation, or for one message.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "core/facts.h"
#include "core/fold/fold.h"
#include "core/fold/summing.h"
#include "core/schedule.h"
#include "transport/shm/copy/copy.h"
#include "transport/shm/peers/membership.h"
#include "transport/shm/policy/choose.h"
#include "transport/shm/ways/sent_memory.h"

namespace a2a::shm {

// The bytes that this rank still has to send to one peer, and receive from it. For the rank's own part only `in_left`,
// `source` and `target` are used.
struct Pair {
  enum class Out : uint8_t { settled, streaming, unacknowledged };
  enum class In : uint8_t { awaited, inlined, streaming, pulling, asking, arrived };

  // The fields that every operation needs come first, so that they share cache lines.
  Out out = Out::settled;
  In in = In::awaited;
  Head mine{};         // this rank's line: the facts, and the way of the bytes once chosen
  Head theirs{};       // the peer's line, once it was seen
  size_t in_left = 0;  // bytes still to receive
  Cursor source;       // the sends that are not staged yet
  Cursor target;       // the receives that are not written yet

  std::span<const std::byte> here;      // the next bytes, where they have come to memory that this rank may read
  uint64_t out_first = 0;               // the number of the first chunk staged
  uint64_t out_handed = 0;              // chunks staged
  uint64_t out_left = 0;                // chunks still to stage
  std::vector<Run> listed;              // the peer's runs, from which bytes are pulled
  std::vector<Strides> listed_strides;  // of the listed runs with gaps
  Cursor remote;                        // the rest of the listed runs
  std::vector<std::byte> read;          // of a reduction: bytes that CMA has read ahead, for `here`
  size_t again = 0;                     // of a reduction: bytes that come again, through chunks, and were used before

  // Returns the size of the next chunk to stage.
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

// The state of a fold. Its lists keep their memory from one operation to the next.
struct Reduction {
  // An output and the ranks whose parts are folded into it, in that order.
  struct Output {
    std::span<const Run> runs;
    std::vector<Rank> ranks;
  };

  void begin(const Batch& batch, Rank rank);
  // Goes on to the next output. Returns false after the last one.
  bool next(Rank rank);
  size_t bytes() const;  // of all outputs

  std::optional<Folder> folder;  // if received bytes are folded
  std::vector<Output> outputs;   // in the order in which each rank sends its parts
  size_t next_output = 0;
  std::vector<Rank> ranks;              // whose parts are folded, in that order
  std::optional<size_t> own;            // the place of this rank among them
  Cursor output;                        // the rest of it
  size_t left = 0;                      // bytes of it
  std::vector<const std::byte*> parts;  // of the ranks: the next piece
};

struct Source;

// What pairs belong to: an operation of a group, or a message. Here stands what differs for their bytes.
struct Transfer {
  virtual ~Transfer() = default;
  // Names it and this rank, for the texts of errors: "alltoall #4: rank 2".
  virtual std::string name(const Membership& m) const = 0;
  // Tells the peer that this rank has made all its copies from the memory that the peer exposed.
  virtual void acknowledge(const Source& from) = 0;
  // Tells the peer that this rank cannot read that memory. All bytes come again, through memory of the library.
  virtual void ask_for_copies(const Source& from) = 0;
  // Whether received bytes are folded or summed rather than copied.
  virtual bool calculates() const { return false; }
  // Whether the peers' bytes are used in an order that does not depend on when they come.
  virtual bool has_fixed_order() const { return false; }

  Stores stores = Stores::cached;  // for outputs
};

// The state of one operation that all its pairs share.
struct Operation final : Transfer {
  Operation(Rank own, int size) : rank(own), pairs(static_cast<size_t>(size)) {}

  Batch batch;
  Rank rank;
  std::vector<Pair> pairs;
  Load load;
  size_t lists = 0;  // how many lists of runs it has made in the segment
  Run for_all;       // the copy in the segment of bytes that all peers get alike, if there is one
  Sends sent;        // to all peers
  Reduction reduction;
  std::optional<Summing> summing;  // if received bytes are summed with weights

  std::string name(const Membership& m) const override;
  void acknowledge(const Source& from) override;
  void ask_for_copies(const Source& from) override;
  bool calculates() const override { return reduction.folder.has_value() || summing.has_value(); }
  bool has_fixed_order() const override { return summing.has_value(); }

  // Takes over a batch. Leaves the caller the last batch's lists, for their memory.
  void begin(Batch&& batch);

  uint64_t step() const { return step_of(batch.signature.number, batch.stage); }
  Pair& pair(Rank peer) { return pairs[static_cast<size_t>(peer)]; }
  const Pair& pair(Rank peer) const { return pairs[static_cast<size_t>(peer)]; }
  Pair& own() { return pair(rank); }
  const Pair& own() const { return pair(rank); }

  // Whether this rank's own send and receive overlap, and nothing of it was copied yet. Then copy_self() has to copy
  // it, whose segments are cut alike. Inside the library (at_most) nothing overlaps, and segments may be cut
  // differently.
  bool own_in_place() const;
};

// A pair as a source of bytes.
struct Source {
  Source(Membership& membership, Transfer& of, Rank with, Pair& its_pair)
      : m(membership), transfer(of), peer(with), pair(its_pair), other(membership.peer(with)) {}

  Membership& m;
  Transfer& transfer;
  const Rank peer;
  Pair& pair;
  Peer& other;

  LocalPeer& host() const { return *other.host; }
  // The pipe from this rank to the peer, and the one from the peer to this rank.
  Block::Pair& own_pipe() const { return m.block().pipe(peer); }
  const Block::Pair& their_pipe() const { return other.block.pipe(m.rank()); }
  std::string name() const { return transfer.name(m); }

  [[noreturn]] void nonsense(const char* what) const { m.nonsense(peer, what); }
};

// A pair of an operation: it has lines, too.
struct Link final : Source {
  Link(Membership& membership, Operation& of, Rank with) : Source(membership, of, with, of.pair(with)), operation(of) {}

  Operation& operation;

  uint64_t step() const { return operation.step(); }
  Line& own_line() const { return m.block().line(step(), peer); }
  const Line& their_line() const { return other.block.line(step(), m.rank()); }
  // Whether the peer has made all its copies from or to this rank's memory.
  bool peer_has_copied() const { return is_copied(their_pipe(), step()); }
};

}  // namespace a2a::shm
