#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "a2a/sharding.h"
#include "core/sharding/boxes.h"
#include "core/sharding/pieces.h"
#include "core/stages/topology.h"
#include "runtime/hash.h"

namespace a2a {
namespace {

void check_shape(const Resharding& tensor) {
  int64_t bytes = std::max<int64_t>(1, static_cast<int64_t>(tensor.dtype.bytes()));
  for (const int64_t entries : tensor.shape) {
    if (entries < 0) sharding::refuse("shape has a dimension of " + std::to_string(entries) + " entries");
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(1, entries), &bytes))
      sharding::refuse("shape overflows 64 bits");
  }
}

// Whether some box is passed on: it is folded for several ranks, or no rank of a host has it and several want it.
bool has_two_stages(const std::vector<Parts::Cell>& cells, const std::vector<Parts::Group>& wanted, bool folds,
                    const Topology& topology) {
  if (folds) return std::ranges::any_of(wanted, [](const Parts::Group& group) { return group.ranks.size() > 1; });
  if (topology.hosts() == 1) return false;
  std::vector<int> ranks(static_cast<size_t>(topology.hosts()));
  for (const Parts::Group& group : wanted) {
    std::ranges::fill(ranks, 0);
    for (const Rank rank : group.ranks) ++ranks[static_cast<size_t>(topology.host_of(rank))];
    for (const Parts::Cell& cell : cells) {
      if (!sharding::meet(cell.box, group.box)) continue;
      std::vector<int> lacking = ranks;
      for (const auto& copy : cell.copies) lacking[static_cast<size_t>(topology.host_of(copy[0]))] = 0;
      if (std::ranges::any_of(lacking, [](int count) { return count > 1; })) return true;
    }
  }
  return false;
}

bool every_rank_has_a_part(const Parts& src, const Parts& dst) {
  for (size_t rank = 0; rank < src.boxes().size(); ++rank) {
    const auto has_part = [rank](const Parts& parts) {
      const std::optional<Box>& box = parts.boxes()[rank];
      return box && !sharding::is_empty(*box);
    };
    if (!has_part(src) && !has_part(dst)) return false;
  }
  return true;
}

// Collects the segments of one operation.
class Collector {
 public:
  Collector(Rank rank, int size, DType dtype, Fold fold) : rank_(rank), size_(size), dtype_(dtype), fold_(fold) {
    if (folds()) stages_[0].sink = Sink::fold;
    stages_[1].reach = folds() ? Reach::group : Reach::host;
  }

  bool folds() const { return fold_ != Fold::none; }
  bool takes(DType dtype, Fold fold) const { return fold == fold_ && (fold == Fold::none || dtype == dtype_); }
  void need_two_stages() { two_stages_ = true; }

  void add(size_t tensor, const sharding::Piece& piece, size_t elem_bytes, const Box* src, const Box* dst) {
    const size_t bytes = static_cast<size_t>(piece.box.elems()) * elem_bytes;
    if (std::ranges::find(piece.from, rank_) != piece.from.end()) {
      stages_[0].sends.push_back({piece.to, sends_.next(), 0, bytes});
      sends_.add(bytes, {tensor, sharding::within(piece.box, *src)});
    }
    const bool passed = std::ranges::find(piece.then, rank_) != piece.then.end();
    if (piece.to != rank_ && !passed) return;
    const int number = recvs_.next();
    recvs_.add(bytes, {tensor, sharding::within(piece.box, *dst)});
    if (passed) {
      stages_[1].recvs.push_back({piece.to, number, 0, bytes});
      return;
    }
    // Those of one fold have the same number.
    const uint32_t label = folds() ? static_cast<uint32_t>(number) + 1 : 0;
    for (const Rank peer : piece.from) stages_[0].recvs.push_back({peer, number, 0, bytes, label});
    for (const Rank peer : piece.then) stages_[1].sends.push_back({peer, number, 0, bytes, 0, Space::received});
  }

  Reshard::Part part(uint32_t agreement) && {
    if (!two_stages_) stages_.pop_back();
    for (Stage& stage : stages_) {
      std::ranges::stable_sort(stage.sends, {}, &Segment::peer);
      std::ranges::stable_sort(stage.recvs, {}, &Segment::peer);
      // A rank without a part need not know the dtype.
      if (stage.recvs.empty() && dtype_.bits == 0) stage.sink = Sink::copy;
    }
    return {
        Plan::of_stages(rank_, size_, std::move(stages_), std::move(sends_.bytes), std::move(recvs_.bytes), agreement),
        dtype_, fold_, std::move(sends_.buffers), std::move(recvs_.buffers)};
  }

 private:
  struct Side {
    std::vector<size_t> bytes;
    std::vector<Reshard::Buffer> buffers;

    int next() const { return static_cast<int>(buffers.size()); }
    void add(size_t count, Reshard::Buffer buffer) {
      bytes.push_back(count);
      buffers.push_back(std::move(buffer));
    }
  };

  Rank rank_;
  int size_;
  DType dtype_;
  Fold fold_;
  bool two_stages_ = false;
  std::vector<Stage> stages_{2};
  Side sends_, recvs_;
};

// Makes the plan of one rank, tensor by tensor.
class Maker {
 public:
  Maker(Rank rank, int size, const Topology& topology, bool all_know_dtypes)
      : rank_(rank), size_(size), topology_(topology), all_know_dtypes_(all_know_dtypes) {}

  // Returns this rank's parts, before and after.
  std::array<std::optional<Box>, 2> add(size_t number, const Resharding& tensor) {
    check_shape(tensor);
    const Parts src("src", tensor.src, tensor.shape, size_), dst("dst", tensor.dst, tensor.shape, size_);
    const Fold fold = tensor.src.fold();
    if (tensor.dst.fold() != Fold::none) sharding::refuse("dst: the parts of a destination cannot be partial");
    if (fold != Fold::none && tensor.dtype.bits != 0) require_defined(fold, tensor.dtype);
    const auto at = static_cast<size_t>(rank_);
    const std::optional<Box>&here = src.boxes()[at], &there = dst.boxes()[at];
    const std::vector<Parts::Cell> cells = src.cells();
    const std::vector<Parts::Group> wanted = dst.groups();
    note(tensor, cells, wanted);
    Collector& collector = collector_for(tensor.dtype, fold);
    const bool passes_on = all_know_dtypes_ || every_rank_has_a_part(src, dst);
    if (passes_on && has_two_stages(cells, wanted, collector.folds(), topology_)) collector.need_two_stages();
    const sharding::Distribution all{wanted, topology_, tensor.dtype.bytes(), collector.folds(), passes_on, number};
    for (const Parts::Cell& cell : cells) {
      for (const sharding::Piece& piece : pieces_of(cell, all, rank_)) {
        collector.add(number, piece, tensor.dtype.bytes(), here ? &*here : nullptr, there ? &*there : nullptr);
      }
    }
    return {here, there};
  }

  // `one`: there is one tensor, whose dtype the ranks compare by itself.
  std::vector<Reshard::Part> parts(bool one) && {
    if (collectors_.empty()) collector_for({}, Fold::none);
    if (!one) hash_.add(dtypes_.value());
    std::vector<Reshard::Part> parts;
    for (Collector& collector : collectors_) {
      parts.push_back(std::move(collector).part(static_cast<uint32_t>(hash_.value() ^ hash_.value() >> 32) | 1));
    }
    return parts;
  }

 private:
  // What is copied is one operation, whatever its dtypes.
  Collector& collector_for(DType dtype, Fold fold) {
    const auto found = std::ranges::find_if(collectors_, [&](const Collector& one) { return one.takes(dtype, fold); });
    return found != collectors_.end() ? *found : collectors_.emplace_back(rank_, size_, dtype, fold);
  }

  // Adds what all ranks have to agree on.
  void note(const Resharding& tensor, const std::vector<Parts::Cell>& cells, const std::vector<Parts::Group>& wanted) {
    hash_.add(tensor.shape.size()).add(static_cast<uint64_t>(tensor.src.fold()));
    for (const int64_t entries : tensor.shape) hash_.add(static_cast<uint64_t>(entries));
    for (const Parts::Cell& cell : cells) {
      note(cell.box);
      for (const auto& copy : cell.copies) note(copy);
    }
    for (const Parts::Group& group : wanted) {
      note(group.box);
      note(group.ranks);
    }
    dtypes_.add(tensor.dtype.code).add(tensor.dtype.bits).add(tensor.dtype.lanes);
  }

  void note(const Box& box) {
    for (const int64_t entry : box.begin) hash_.add(static_cast<uint64_t>(entry));
    for (const int64_t entry : box.end) hash_.add(static_cast<uint64_t>(entry));
  }

  void note(std::span<const Rank> ranks) {
    hash_.add(ranks.size());
    for (const Rank rank : ranks) hash_.add(static_cast<uint64_t>(rank));
  }

  const Rank rank_;
  const int size_;
  const Topology& topology_;
  const bool all_know_dtypes_;
  std::vector<Collector> collectors_;
  Hash hash_, dtypes_;
};

}  // namespace

Reshard Reshard::make(Rank rank, int size, std::span<const Resharding> tensors, std::span<const int> hosts,
                      bool all_know_dtypes) {
  if (size < 1 || rank < 0 || rank >= size) {
    sharding::refuse("there is no rank " + std::to_string(rank) + " in a group of " + std::to_string(size));
  }
  if (!hosts.empty() && hosts.size() != static_cast<size_t>(size)) {
    sharding::refuse("hosts has " + std::to_string(hosts.size()) + " entries for " + std::to_string(size) + " ranks");
  }
  std::vector<int> one_host(hosts.empty() ? static_cast<size_t>(size) : 0);
  const Topology topology(hosts.empty() ? one_host : std::vector<int>(hosts.begin(), hosts.end()));
  Reshard reshard;
  reshard.size_ = size;
  Maker maker(rank, size, topology, all_know_dtypes);
  for (size_t i = 0; i < tensors.size(); ++i) {
    try {
      auto [src, dst] = maker.add(i, tensors[i]);
      reshard.src_.push_back(std::move(src));
      reshard.dst_.push_back(std::move(dst));
      reshard.dtypes_.push_back(tensors[i].dtype);
    } catch (const Error& error) {
      if (tensors.size() == 1) throw;
      throw Error(error.code(), "tensors[" + std::to_string(i) + "]: " + error.what());
    }
  }
  reshard.parts_ = std::move(maker).parts(tensors.size() == 1);
  return reshard;
}

size_t Reshard::stages() const {
  size_t stages = 0;
  for (const Part& part : parts_) stages += part.plan.stages().size();
  return stages;
}

std::vector<uint64_t> Reshard::bytes_to(size_t stage) const {
  std::vector<uint64_t> bytes(static_cast<size_t>(size_));
  for (const Part& part : parts_) {
    for (const Stage& one : part.plan.stages()) {
      if (stage-- != 0) continue;
      for (const Segment& segment : one.sends) bytes[static_cast<size_t>(segment.peer)] += segment.bytes;
    }
  }
  return bytes;
}

}  // namespace a2a
