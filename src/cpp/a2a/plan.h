// Makes checked byte segments of counts and displacements. The bindings make layouts with gaps of bytes, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "a2a/types.h"

namespace a2a {

// The buffers that a segment lies in.
enum class Space : uint8_t {
  user,      // the caller's, of that side
  received,  // of a send: the caller's into which the plan receives
  scratch,   // memory of the operation, of Plan::scratch_bytes()
};

// One run of bytes exchanged with one peer.
struct Segment {
  Rank peer = 0;
  int buffer = 0;      // index of the tensor in the list form, otherwise 0
  size_t offset = 0;   // bytes from the start of that buffer
  size_t bytes = 0;    // never 0: empty segments are not stored
  uint32_t label = 0;  // both ends compare it: the number of the rows' expert, from 1, or what compare() has set
  Space space = Space::user;

  bool operator==(const Segment&) const = default;
};

// The place of each peer's part in a buffer, in elements (dim-0 rows when the caller's unit is a row). Empty displs
// mean packed in rank order.
struct Layout {
  std::span<const int64_t> counts;
  std::span<const int64_t> displs = {};
};

// Rows of a buffer that go to each rank, or come from it: counts[p] rows for rank p. Their numbers are in `rows`, by
// rank. Adjacent rows are not merged.
struct RowList {
  std::span<const int64_t> counts, rows;
};

// Rows of the output that several places want. When the rows of rank p have arrived, row copies[i].from of each buffer
// is copied to row copies[i].to, for each i from begins[p] to begins[p + 1].
struct RowCopies {
  struct Copy {
    int64_t from = 0, to = 0;
  };
  std::vector<size_t> begins;
  std::vector<Copy> copies;
  std::vector<size_t> row_bytes;  // of each buffer

  std::span<const Copy> of(Rank rank) const {
    const auto r = static_cast<size_t>(rank);
    return {copies.data() + begins[r], begins[r + 1] - begins[r]};
  }
};

// The terms of a weighted sum: term k of output row i comes from rank sources[i * terms + k]; -1: there is none.
struct Summands {
  std::vector<Rank> sources;
  size_t terms = 0;
};

// What becomes of the bytes that a stage receives.
enum class Sink : uint8_t {
  copy,     // they are the output
  fold,     // all receives are one output, into which they are folded (Call::fold)
  sum,      // weighted rows are summed into the output (Call::weights)
  fan_out,  // they are the output, and some rows are copied on within it
};

// The ranks between which a stage moves bytes. The same on all ranks.
enum class Reach : uint8_t {
  group,    // all
  host,     // those of one host
  network,  // those of different hosts
};

// A part of a fold between hosts: what comes from these ranks. Either each of them sends all elements of the output, or
// they send disjoint pieces of it. The part counts `times` times in an average.
struct FoldPart {
  std::vector<Rank> from;
  size_t times = 1;

  bool operator==(const FoldPart&) const = default;
};

// Sends of one rank, and what becomes of the bytes that it receives meanwhile. A stage begins on a rank when the one
// before is done there.
struct Stage {
  std::vector<Segment> sends, recvs;
  Sink sink = Sink::copy;
  Reach reach = Reach::group;
  // Of a fold: the ranks of each part are folded in rank order and the result is rounded to the dtype, then the parts
  // are folded in this order. Empty: one part of all ranks.
  std::vector<FoldPart> parts;
};

// The stages of one rank: what it sends and receives in each. Checked when made, immutable, reusable, does no I/O and
// knows no device.
//
// Matching rule, in each stage: for every ordered pair a -> b the k-th send segment at a pairs with the k-th receive
// segment at b, and both have the same bytes. sends() and recvs() are sorted by peer; segments of one peer keep their
// order k. Segments are never merged.
//
// All factories throw Error(invalid_argument) naming the rank, the argument and its values when a count or displacement
// is negative, a product or sum overflows, a segment leaves its buffer, two receive segments overlap, or the rank's
// sends to itself differ from its receives from itself. Send segments may overlap each other.
class A2A_API Plan {
 public:
  // Each rank sends counts[p] elements to rank p. send_elems and recv_elems are the sizes of the two buffers.
  static Plan alltoallv(Rank rank, int size, size_t elem_bytes, Layout send, size_t send_elems, Layout recv,
                        size_t recv_elems);

  // Buffer i of each list goes to, or comes from, rank i, whole.
  static Plan alltoall_list(Rank rank, int size, std::span<const size_t> send_bytes,
                            std::span<const size_t> recv_bytes);

  // Every rank's bytes_per_rank bytes, packed in rank order.
  static Plan allgather(Rank rank, int size, size_t bytes_per_rank);

  // Paddle's mixture-of-experts exchange. With E = counts / size experts on each rank, local[r * E + e] rows go to
  // expert e of rank r, and global[r * E + e] rows come from rank r for this rank's expert e. The input is packed by
  // (rank, expert), the output by (expert, rank). local and global have the same length, a positive multiple of size.
  // The input holds sum(local) rows and the output sum(global). The caller compares the extents, which are these sizes
  // in bytes, with its buffers.
  static Plan global_scatter(Rank rank, int size, size_t row_bytes, std::span<const int64_t> local,
                             std::span<const int64_t> global);
  // The inverse: the input is packed by (expert, rank) with global rows, the output by (rank, expert) with local rows.
  static Plan global_gather(Rank rank, int size, size_t row_bytes, std::span<const int64_t> local,
                            std::span<const int64_t> global);

  // ---- reductions: what arrives is folded into the output (Call::fold) in rank order, between hosts in an order of
  // the placement (docs/design/hosts.md) ----

  // The input holds counts[p] elements for each rank p, the same list on all ranks; the output counts[rank] elements.
  static Plan reduce_scatter(Rank rank, int size, size_t elem_bytes, std::span<const int64_t> counts);
  // Every rank gets the fold of all ranks' elements. Without `in_parts` it has one stage, in which each rank sends all
  // its elements to every other. With `in_parts` it has two: each rank folds a part, and then sends that to the others.
  // From some size on that sends fewer bytes.
  static Plan allreduce(Rank rank, int size, size_t elem_bytes, size_t elems, bool in_parts);
  // Each rank gets the fold of its own elements and those of all ranks below it; with `exclusive` of those below it
  // alone. Then rank 0 receives nothing.
  static Plan scan(Rank rank, int size, size_t elem_bytes, size_t elems, bool exclusive);
  // Only the root gets the fold.
  static Plan reduce(Rank rank, int size, Rank root, size_t bytes);

  // ---- rows one by one ----

  // Buffer i of either side has rows of row_bytes[i]; all buffers are divided alike. Requires that no row is received,
  // or copied to, twice.
  static Plan rows(Rank rank, int size, std::span<const size_t> row_bytes, RowList send, int64_t send_rows,
                   RowList recv, int64_t recv_rows, std::shared_ptr<const RowCopies> copies = nullptr);
  // nullptr: no row is copied.
  const std::shared_ptr<const RowCopies>& copies() const { return copies_; }
  // The rows from each rank are summed into the `recv_rows` rows of the output (Call::weights), in the order of their
  // terms. Requires that each rank sends its rows in the order in which the receiver has them among its terms.
  static Plan weighted_sum(Rank rank, int size, size_t row_bytes, RowList send, int64_t send_rows, int64_t recv_rows,
                           std::shared_ptr<const Summands> summands);
  // From now on both ends compare labels[i], such as a dtype, for the segments of buffer i; 0: nothing. Requires as
  // many labels as there are buffers.
  void compare(std::span<const uint32_t> labels);
  // The terms of a weighted sum, otherwise nullptr.
  const std::shared_ptr<const Summands>& summands() const { return summands_; }

  // ---- rooted ----

  // The root's bytes go to all others; at the root nothing moves.
  static Plan broadcast(Rank rank, int size, Rank root, size_t bytes);
  // Every rank's bytes_per_rank bytes go to the root, which packs them in rank order.
  static Plan gather(Rank rank, int size, Rank root, size_t bytes_per_rank);
  // The inverse of gather.
  static Plan scatter(Rank rank, int size, Rank root, size_t bytes_per_rank);

  // Returns a plan of stages over lists of buffers of these sizes. Requires that the plans of all ranks fit together,
  // and one agreement on all of them, which is not 0. In a fold, receives of one output have one label, which is not 0,
  // and those of each peer are in the order of their labels.
  static Plan of_stages(Rank rank, int size, std::vector<Stage> stages, std::vector<size_t> send_bytes,
                        std::vector<size_t> recv_bytes, uint32_t agreement);

  // Whether all receives of the first stage are one output into which arriving bytes are folded.
  bool folds() const { return stages_.front().sink == Sink::fold; }

  // The stages, at least one. Ranks compare their arguments before the first one moves bytes.
  std::span<const Stage> stages() const { return stages_; }
  // The bytes of memory that the stages need besides the buffers.
  size_t scratch_bytes() const { return scratch_bytes_; }
  // A number that all ranks have alike and that a rank with other arguments does not have: all ranks go on to the next
  // stage, or none does. 0: the ranks compare what each pair exchanges; then there is one stage.
  uint32_t agreement() const { return agreement_; }
  // Returns a plan over the same buffers that reaches the same by other stages. An agreement of 0 keeps this plan's.
  Plan with_stages(std::vector<Stage> stages, size_t scratch_bytes, uint32_t agreement) const;

  // Returns the plan with sends and receives exchanged: the backward pass. Throws Error(invalid_argument) when the send
  // segments overlap each other, because they would become overlapping receives.
  Plan transpose() const;

  Rank rank() const { return rank_; }
  int size() const { return size_; }
  // Those of the first stage.
  std::span<const Segment> sends() const { return stages_.front().sends; }
  std::span<const Segment> recvs() const { return stages_.front().recvs; }
  // One past the last byte used in each buffer of that side; one entry per buffer (size() entries in the list form).
  std::span<const size_t> send_extents() const { return send_extents_.get(); }
  std::span<const size_t> recv_extents() const { return recv_extents_.get(); }

 private:
  // The extent of one buffer, or in the list form one for each; then `whole` means nothing.
  struct Extents {
    size_t whole = 0;
    std::vector<size_t> each;
    std::span<const size_t> get() const { return each.empty() ? std::span(&whole, 1) : std::span(each); }
  };

  Plan(Rank rank, int size) : rank_(rank), size_(size), stages_(1) {}
  Stage& first() { return stages_.front(); }
  void append_from_all(size_t offset, size_t bytes);  // receives of one output
  static Extents append_rows(std::vector<Segment>& segments, Rank rank, const char* side, int size,
                             std::span<const size_t> row_bytes, const RowList& list, int64_t rows);

  Rank rank_;
  int size_;
  std::vector<Stage> stages_;
  size_t scratch_bytes_ = 0;
  uint32_t agreement_ = 0;
  std::shared_ptr<const Summands> summands_;
  std::shared_ptr<const RowCopies> copies_;
  Extents send_extents_, recv_extents_;
};

}  // namespace a2a
