#include "core/stages/arrange.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/stages/choose.h"
#include "core/stages/host_first.h"
#include "core/stages/in_parts.h"
#include "core/stages/ring.h"
#include "core/stages/segments.h"
#include "runtime/hash.h"

namespace a2a {
namespace {

// Returns a hash of all ranks' parts. It covers the root of an operation that has one.
uint32_t hash_of(std::span<const size_t> parts) {
  Hash hash;
  for (const size_t bytes : parts) hash.add(bytes);
  return static_cast<uint32_t>(hash.value() ^ hash.value() >> 32) | 1;
}

bool goes_to_all(Op op) { return op == Op::broadcast || op == Op::allgather || op == Op::allgatherv; }

Plan at_once(const Plan& plan, const Topology& topology) {
  std::vector<Stage> stages(plan.stages().begin(), plan.stages().end());
  stages[0].parts = parts_by_host(stages[0], topology);
  return plan.with_stages(std::move(stages), 0, 0);
}

}  // namespace

std::optional<Plan> arrange(const Plan& plan, const Call& call, const Topology& topology) {
  const bool folds = plan.folds(), two_halves = plan.stages().size() > 1;
  if (call.op == Op::reshard || (!folds && !goes_to_all(call.op))) return std::nullopt;
  const Rank rank = plan.rank();
  const PartsOfStage parts = parts_of(plan.stages()[0], rank, topology);
  Stages chosen = choose_stages(call.op, parts.bytes, topology);
  if (call.op == Op::allreduce) chosen = !two_halves ? Stages::at_once : std::max(chosen, Stages::in_parts);
  if (chosen == Stages::at_once) return folds ? std::optional(at_once(plan, topology)) : std::nullopt;

  const size_t unit = stages::unit_of(call.dtype.bytes());
  std::vector<Stage> stages;
  size_t scratch = 0;
  if (chosen == Stages::ring) {
    const size_t bytes = plan.send_extents()[0];
    scratch = append_ring(stages, rank, {rank, 0, 0, bytes}, {rank, 0, 0, bytes}, topology, unit);
  } else if (chosen == Stages::in_parts && call.op == Op::broadcast) {
    append_broadcast_in_parts(stages, plan, topology);
  } else if (chosen == Stages::in_parts && call.op == Op::reduce) {
    scratch = append_reduce_in_parts(stages, plan, topology, unit);
  } else if (folds) {
    scratch = append_host_first(stages, parts, topology, unit);
    if (two_halves) {
      append_host_last(stages, parts_of(plan.stages()[1], rank, topology), topology, Reach::network);
    }
  } else {
    append_host_last(stages, parts, topology, Reach::group);
  }
  return plan.with_stages(std::move(stages), scratch, two_halves ? 0 : hash_of(parts.bytes));
}

}  // namespace a2a
