// a2a/experts.h with the types that Cython can pass.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "a2a/communicator.h"
#include "a2a/experts.h"
#include "cpp/exchange.h"

namespace a2a_py {

using PlacementPtr = std::shared_ptr<const a2a::ExpertPlacement>;
using RoutingPtr = std::shared_ptr<a2a::Routing>;

inline PlacementPtr place_blocks(int size, int64_t experts) {
  return std::make_shared<const a2a::ExpertPlacement>(a2a::ExpertPlacement::blocks(size, experts));
}
inline PlacementPtr place(int size, const std::vector<std::vector<int>>& ranks, const std::vector<int>& hosts,
                          const std::vector<uint8_t>& active, bool may_lack) {
  const a2a::ExpertPlacement::Options options{hosts, active, may_lack};
  return std::make_shared<const a2a::ExpertPlacement>(size, ranks, options);
}

inline RoutingPtr make_routing(const PlacementPtr& placement, int rank, const std::vector<int64_t>& experts,
                               int64_t tokens, int top_k, bool by_expert, int64_t align) {
  return std::make_shared<a2a::Routing>(placement, rank, a2a::Routing::Choices{experts, tokens, top_k},
                                        by_expert ? a2a::RowOrder::expert : a2a::RowOrder::rank, align);
}

// Writes the messages to all ranks, one after the other, and their sizes in bytes.
inline void write_routes(const a2a::Routing& routing, int size, const std::vector<float>& weights,
                         std::vector<int64_t>& bytes, std::vector<char>& messages) {
  size_t total = 0;
  for (int rank = 0; rank < size; ++rank) {
    bytes.push_back(static_cast<int64_t>(routing.told_bytes(rank, !weights.empty())));
    total += static_cast<size_t>(bytes.back());
  }
  messages.resize(total);
  auto* to = reinterpret_cast<std::byte*>(messages.data());
  for (int rank = 0; rank < size; ++rank) {
    routing.tell(rank, weights, to);
    to += bytes[static_cast<size_t>(rank)];
  }
}
inline void read_routes(a2a::Routing& routing, const std::vector<int64_t>& counts, bool weighted,
                        const std::vector<char>& messages) {
  routing.hear(counts, weighted, {reinterpret_cast<const std::byte*>(messages.data()), messages.size()});
}
inline std::vector<int64_t> sent_counts(const a2a::Routing& r) { return {r.sent().begin(), r.sent().end()}; }
inline std::vector<int64_t> dropped_choices(const a2a::Routing& r) { return {r.dropped().begin(), r.dropped().end()}; }
inline std::vector<int64_t> row_counts(const a2a::Routing& r) { return {r.counts().begin(), r.counts().end()}; }
inline std::vector<int64_t> row_begins(const a2a::Routing& r) { return {r.begins().begin(), r.begins().end()}; }

inline PlanPtr plan_dispatch(const a2a::Routing& routing, const std::vector<size_t>& row_bytes,
                             const std::vector<uint32_t>& dtypes) {
  auto plan = std::make_shared<a2a::Plan>(routing.dispatch(row_bytes));
  plan->compare(dtypes);
  return plan;
}
inline PlanPtr plan_combine(const a2a::Routing& routing, size_t row_bytes, bool weighted) {
  auto plan = std::make_shared<a2a::Plan>(routing.combine(row_bytes));
  plan->compare(std::array{static_cast<uint32_t>(weighted)});
  return plan;
}
inline PlanPtr plan_give_back(const a2a::Routing& routing, size_t row_bytes) {
  return std::make_shared<const a2a::Plan>(routing.give_back(row_bytes));
}

inline void clear_padding(const a2a::Routing& routing, char* rows, size_t row_bytes) {
  std::vector<std::pair<int64_t, int64_t>> padding;
  routing.padding(padding);
  for (const auto& [begin, count] : padding) {
    char* const first = rows + begin * static_cast<int64_t>(row_bytes);
    if (row_bytes > 0) std::memset(first, 0, static_cast<size_t>(count) * row_bytes);
  }
}

inline void set_bias(a2a::Call& call, size_t i, const void* bias) { call.biases[i] = bias; }
inline void set_weights(a2a::Call& call, const float* weights) { call.weights = weights; }

}  // namespace a2a_py
