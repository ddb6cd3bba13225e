// Where the parts of a tensor are among the ranks of a group, and the plan that brings a tensor from one such sharding
// to another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "a2a/plan.h"
#include "a2a/strides.h"
#include "a2a/types.h"

namespace a2a {

// Entries begin[i] to end[i] of each dimension i of a tensor. Without dimensions: the one element of a 0-d tensor.
struct A2A_API Box {
  std::vector<int64_t> begin, end;

  int64_t elems() const;
  std::vector<int64_t> shape() const;

  bool operator==(const Box&) const = default;
};

// What one axis of a mesh does to a tensor.
struct Placement {
  enum class Kind : uint8_t {
    replicate,  // all ranks along the axis have the same
    shard,      // they divide a dimension
    partial,    // each has a term of the elements, which are the fold of all
  };
  Kind kind = Kind::replicate;
  int dim = 0;             // of shard; a negative one counts from the last
  Fold fold = Fold::none;  // of partial

  static Placement replicate() { return {}; }
  static Placement shard(int dim) { return {Kind::shard, dim, Fold::none}; }
  static Placement partial(Fold fold = Fold::sum) { return {Kind::partial, 0, fold}; }

  bool operator==(const Placement&) const = default;
};

// The parts of a tensor by rank. Immutable; copies share memory.
class A2A_API Sharding {
 public:
  // A mesh of ranks in C order, and a placement for each of its axes. A dimension of n entries is divided among m ranks
  // as torch.chunk does: ceil(n / m) entries each, the last ones fewer or none. Several axes may divide one dimension,
  // in their order. Throws Error(invalid_argument) for a mesh that names a rank twice, or whose shape or placements do
  // not fit.
  static Sharding mesh(std::vector<int64_t> mesh_shape, std::vector<Rank> ranks, std::vector<Placement> placements);
  // boxes[r] is what rank r has; nullopt, or no entry: nothing.
  static Sharding boxes(std::vector<std::optional<Box>> boxes);

  // Returns the part of a rank, which may be empty; nullopt where the rank is not in the mesh. Throws
  // Error(invalid_argument) where the sharding does not fit the shape.
  std::optional<Box> box(Rank rank, std::span<const int64_t> shape) const;
  // The fold of partial axes; none: there are none with several ranks.
  Fold fold() const;
  // One more than the highest rank that it names.
  int least_size() const;

 private:
  friend class Parts;
  struct Mesh;
  struct State;
  explicit Sharding(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

// A tensor, from one sharding to another.
struct Resharding {
  std::vector<int64_t> shape;  // of the whole tensor
  Sharding src, dst;
  DType dtype;
};

// The plan of one rank that brings tensors from one sharding to another. Each rank that has a part of the destination
// gets the bytes that it lacks from one rank that has them, and copies the others from its own part. Ranks that have
// the same part share the sending evenly, those of the same host first. A part that several ranks of a host want comes
// to that host once, and they pass it on. Partial sums are folded in rank order; where several ranks want the same
// part, each folds a piece and passes it on.
//
// Pure, immutable, reusable. All ranks make it of the same tensors in the same order.
class A2A_API Reshard {
 public:
  // `hosts[r]` is any number that rank r shares with the ranks of its host alone; empty: all are on one host. Throws
  // Error(invalid_argument) for a sharding that does not fit the shape or the size of the group, a source that lacks
  // elements, a destination of partial sums, or a fold that the dtype does not have.
  //
  // Without `all_know_dtypes` a rank that has no part of the only tensor need not know its dtype, whose bits are then
  // 0. It cannot notice that others disagree, so nothing is passed on if there is such a rank.
  static Reshard make(Rank rank, int size, std::span<const Resharding> tensors, std::span<const int> hosts = {},
                      bool all_know_dtypes = true);

  // A buffer of a plan: a box of this rank's part of a tensor, in entries of that part.
  struct Buffer {
    size_t tensor = 0;
    Box box;
  };
  // An operation: all that is copied, or all that is folded with one dtype and fold.
  struct Part {
    Plan plan;
    DType dtype;  // of its first tensor
    Fold fold = Fold::none;
    std::vector<Buffer> sends, recvs;
  };

  // At least one, and the same number on all ranks.
  std::span<const Part> parts() const { return parts_; }
  size_t tensors() const { return src_.size(); }
  // This rank's part of a tensor, before and after; nullopt: it is in no mesh.
  const std::optional<Box>& src(size_t tensor) const { return src_[tensor]; }
  const std::optional<Box>& dst(size_t tensor) const { return dst_[tensor]; }
  DType dtype(size_t tensor) const { return dtypes_[tensor]; }
  // The stages of all operations together, the same number on all ranks.
  size_t stages() const;
  // The bytes that this rank sends each rank in a stage; those to itself are copied.
  std::vector<uint64_t> bytes_to(size_t stage) const;

 private:
  std::vector<Part> parts_;
  std::vector<std::optional<Box>> src_, dst_;
  std::vector<DType> dtypes_;
  int size_ = 1;
};

}  // namespace a2a
