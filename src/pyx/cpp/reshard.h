// Shardings and reshardings, for the bindings.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "a2a/communicator.h"
#include "a2a/sharding.h"
#include "cpp/exchange.h"

namespace a2a_py {

using Numbers = std::vector<int64_t>;
using ShardingPtr = std::shared_ptr<const a2a::Sharding>;

inline void add_placement(std::vector<a2a::Placement>& placements, int kind, int dim, a2a::Fold fold) {
  placements.push_back({static_cast<a2a::Placement::Kind>(kind), dim, fold});
}

inline ShardingPtr mesh_sharding(const Numbers& shape, const std::vector<int>& ranks,
                                 const std::vector<a2a::Placement>& placements) {
  return std::make_shared<const a2a::Sharding>(a2a::Sharding::mesh(shape, ranks, placements));
}

// The boxes by rank of a sharding that is being made.
class BoxList {
 public:
  explicit BoxList(size_t size) : boxes_(size) {}
  void set(size_t rank, const Numbers& begin, const Numbers& end) { boxes_[rank] = a2a::Box{begin, end}; }
  ShardingPtr sharding() const { return std::make_shared<const a2a::Sharding>(a2a::Sharding::boxes(boxes_)); }

 private:
  std::vector<std::optional<a2a::Box>> boxes_;
};

// Returns the begin and then the end of each dimension; nothing where the rank has no part.
inline std::optional<Numbers> numbers_of(const std::optional<a2a::Box>& box) {
  if (!box) return std::nullopt;
  Numbers numbers = box->begin;
  numbers.insert(numbers.end(), box->end.begin(), box->end.end());
  return numbers;
}

inline std::optional<Numbers> box_of(const ShardingPtr& sharding, int rank, const Numbers& shape) {
  return numbers_of(sharding->box(rank, shape));
}

class ReshardingList {
 public:
  void add(const Numbers& shape, const ShardingPtr& src, const ShardingPtr& dst, a2a::DType dtype) {
    tensors_.push_back({shape, *src, *dst, dtype});
  }
  ReshardPtr plan(const a2a::Communicator& comm, bool all_know_dtypes) const {
    return std::make_shared<const a2a::Reshard>(comm.plan_reshard(tensors_, all_know_dtypes));
  }
  // Returns the bytes that each rank sends each, stage by stage and then rank by rank.
  std::vector<uint64_t> matrices(int size, const std::vector<int>& hosts) const {
    std::vector<std::vector<uint64_t>> stages;
    for (int rank = 0; rank < size; ++rank) {
      const auto plan = a2a::Reshard::make(rank, size, tensors_, hosts);
      stages.resize(plan.stages());
      for (size_t i = 0; i < stages.size(); ++i) {
        const auto row = plan.bytes_to(i);
        stages[i].insert(stages[i].end(), row.begin(), row.end());
      }
    }
    std::vector<uint64_t> all;
    for (const auto& stage : stages) all.insert(all.end(), stage.begin(), stage.end());
    return all;
  }

 private:
  std::vector<a2a::Resharding> tensors_;
};

inline std::vector<uint64_t> bytes_to(const ReshardPtr& reshard) {
  std::vector<uint64_t> total = reshard->bytes_to(0);
  for (size_t stage = 1; stage < reshard->stages(); ++stage) {
    const auto more = reshard->bytes_to(stage);
    for (size_t rank = 0; rank < total.size(); ++rank) total[rank] += more[rank];
  }
  return total;
}
inline size_t operations_of(const ReshardPtr& reshard) { return reshard->parts().size(); }
inline std::optional<Numbers> src_box(const ReshardPtr& reshard, size_t tensor) {
  return numbers_of(reshard->src(tensor));
}
inline std::optional<Numbers> dst_box(const ReshardPtr& reshard, size_t tensor) {
  return numbers_of(reshard->dst(tensor));
}

}  // namespace a2a_py
