// Runs the plans of a communicator whose receives are folded.
#include <algorithm>

#include "a2a/communicator.h"
#include "core/communicator_state.h"
#include "core/packed_copy.h"
#include "core/reduction.h"

namespace a2a {

Plan Communicator::plan_allreduce(size_t elem_bytes, size_t elems, Memory memory) const {
  if (memory != Memory::host) return Plan::allreduce(rank(), size(), elem_bytes, elems, false);
  const size_t most = state_->open(Op::allreduce)->most_at_once();
  return Plan::allreduce(rank(), size(), elem_bytes, elems, elems > most / std::max<size_t>(1, elem_bytes));
}

std::shared_ptr<Work> Communicator::start_reduction(const Plan& plan, const void* send, void* recv, const Call& call) {
  try {
    require_defined(call.fold, call.dtype);
    if (!plan.recvs().empty() && plan.recvs().front().bytes % call.dtype.bytes() != 0) {
      throw Error(Code::invalid_argument, std::to_string(plan.recvs().front().bytes) +
                                              " bytes are no whole number of " + to_string(call.dtype));
    }
  } catch (const Error& error) {
    refuse(call, error.what());
    throw;
  }
  const bool folds = state_->open(call.op)->folds();
  Batch second;
  const auto fill = [&](Batch& batch) {
    std::span<const TensorLayout> send_layouts = call.send_layouts;
    if (folds && overwrites_what_is_sent(plan, send, recv, call)) {
      send = send_copy(batch, send, plan.send_extents()[0], send_layouts);
      send_layouts = {};
    }
    put_runs(batch, plan, {&send, 1}, {&recv, 1}, send_layouts, call.recv_layouts);
    if (plan.next() == nullptr) return;
    const void* received = recv;
    put_runs(second, *plan.next(), {&received, 1}, {&recv, 1}, call.recv_layouts, call.recv_layouts);
  };
  if (plan.next() == nullptr) return state_->submit(call, fill);
  const size_t elems = plan.send_extents()[0] / call.dtype.bytes();
  return state_->submit_halves(call, static_cast<uint32_t>(elems), second, fill);
}

void put_runs(Batch& batch, const Plan& plan, std::span<const void* const> send, std::span<void* const> recv,
              std::span<const TensorLayout> send_layouts, std::span<const TensorLayout> recv_layouts) {
  // A send run is only read; Run has one pointer type for both directions.
  const auto* from = reinterpret_cast<std::byte* const*>(const_cast<void* const*>(send.data()));
  const auto* to = reinterpret_cast<std::byte* const*>(recv.data());
  set_runs(batch, {plan.sends(), {from, send.size()}, send_layouts}, {plan.recvs(), {to, recv.size()}, recv_layouts});
}

}  // namespace a2a
