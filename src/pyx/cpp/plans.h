// The plans of a2a/plan.h, shared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "a2a/communicator.h"
#include "a2a/plan.h"
#include "cpp/exchange.h"

namespace a2a_py {

inline PlanPtr plan_alltoall_list(int rank, int size, const std::vector<size_t>& send_bytes,
                                  const std::vector<size_t>& recv_bytes) {
  return std::make_shared<const a2a::Plan>(a2a::Plan::alltoall_list(rank, size, send_bytes, recv_bytes));
}

inline PlanPtr plan_allgather(int rank, int size, size_t bytes_per_rank) {
  return std::make_shared<const a2a::Plan>(a2a::Plan::allgather(rank, size, bytes_per_rank));
}

inline PlanPtr plan_global(bool gather, int rank, int size, size_t row_bytes, const CountList& local,
                           const CountList& global) {
  auto make = gather ? a2a::Plan::global_gather : a2a::Plan::global_scatter;
  return std::make_shared<const a2a::Plan>(make(rank, size, row_bytes, local, global));
}

inline PlanPtr plan_allreduce(a2a::Communicator& comm, size_t elem_bytes, size_t elems, a2a::Memory memory) {
  return std::make_shared<const a2a::Plan>(comm.plan_allreduce(elem_bytes, elems, memory));
}
inline PlanPtr plan_scan(int rank, int size, size_t elem_bytes, size_t elems, bool exclusive) {
  return std::make_shared<const a2a::Plan>(a2a::Plan::scan(rank, size, elem_bytes, elems, exclusive));
}
inline PlanPtr plan_reduce_scatter(int rank, int size, size_t elem_bytes, const CountList& counts) {
  return std::make_shared<const a2a::Plan>(a2a::Plan::reduce_scatter(rank, size, elem_bytes, counts));
}
inline PlanPtr plan_reduce(int rank, int size, int root, size_t bytes) {
  return std::make_shared<const a2a::Plan>(a2a::Plan::reduce(rank, size, root, bytes));
}
inline PlanPtr plan_broadcast(int rank, int size, int root, size_t bytes) {
  return std::make_shared<const a2a::Plan>(a2a::Plan::broadcast(rank, size, root, bytes));
}
inline PlanPtr plan_gather(int rank, int size, int root, size_t bytes_per_rank) {
  return std::make_shared<const a2a::Plan>(a2a::Plan::gather(rank, size, root, bytes_per_rank));
}
inline PlanPtr plan_scatter(int rank, int size, int root, size_t bytes_per_rank) {
  return std::make_shared<const a2a::Plan>(a2a::Plan::scatter(rank, size, root, bytes_per_rank));
}

// Returns the plan of one stage, whose ranks compare a number of all arguments.
inline PlanPtr compared(const PlanPtr& plan, uint32_t agreement) {
  const auto stages = plan->stages();
  return std::make_shared<const a2a::Plan>(
      plan->with_stages({stages.begin(), stages.end()}, plan->scratch_bytes(), agreement));
}

inline PlanPtr transpose(const PlanPtr& plan) { return std::make_shared<const a2a::Plan>(plan->transpose()); }
inline size_t send_extent(const PlanPtr& plan) { return plan->send_extents()[0]; }
inline size_t recv_extent(const PlanPtr& plan) { return plan->recv_extents()[0]; }

}  // namespace a2a_py
