// Starts the plans of a communicator.
#include <algorithm>
#include <optional>

#include "a2a/communicator.h"
#include "core/communicator_state.h"
#include "core/fan_out.h"
#include "core/fold/summing.h"
#include "core/in_flight.h"
#include "core/packed_copy.h"
#include "core/reduction.h"
#include "core/stages/arrange.h"
#include "core/stages/choose.h"

namespace a2a {
namespace {

WeightedSum weighted_sum(const Plan& plan, void* output, const Call& call) {
  WeightedSum sum;
  sum.summands = plan.summands();
  sum.out = static_cast<std::byte*>(output);
  const size_t rows = sum.summands->sources.size() / sum.summands->terms;
  sum.row_bytes = rows > 0 ? plan.recv_extents()[0] / rows : 0;
  sum.weights = call.weights;
  for (size_t i = 0; i < sum.biases.size(); ++i) sum.biases[i] = static_cast<const std::byte*>(call.biases[i]);
  return sum;
}

// Returns why these layouts do not fit the buffers that one side of a plan needs; "" if they fit.
std::string layout_problem(const char* side, std::span<const size_t> extents, std::span<const TensorLayout> layouts) {
  if (layouts.empty()) return "";
  if (layouts.size() != extents.size()) {
    return std::string(side) + "_layouts has " + std::to_string(layouts.size()) + " entries for " +
           std::to_string(extents.size()) + " buffers";
  }
  for (size_t i = 0; i < layouts.size(); ++i) {
    const std::string name = std::string(side) + "_layouts[" + std::to_string(i) + "]";
    const auto& [shape, strides, elem_bytes, axis, _] = layouts[i];
    if (strides.size() != shape.size() || axis < 0 || static_cast<size_t>(axis) >= std::max<size_t>(1, shape.size())) {
      return name + " has " + std::to_string(shape.size()) + " entries in its shape, " +
             std::to_string(strides.size()) + " in its strides, and axis " + std::to_string(axis);
    }
    size_t bytes = elem_bytes;
    for (const int64_t entries : shape) {
      if (entries < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(entries), &bytes)) {
        return name + " has a dimension of " + std::to_string(entries) + " entries";
      }
    }
    if (bytes < extents[i]) {
      return name + " has " + std::to_string(bytes) + " bytes, but the plan needs " + std::to_string(extents[i]);
    }
  }
  return "";
}

// Returns why a plan is for host memory only; "" if it may run on a device.
std::string device_problem(const Plan& plan, const Call& call) {
  const Sink sink = plan.stages().front().sink;
  if (plan.stages().size() > 1)
    return "the plan is in parts, which is for host memory; plan_allreduce() makes one for devices";
  if (sink == Sink::sum || sink == Sink::fan_out) {
    return "sums of rows, and rows that are received once and copied, are for host memory";
  }
  if (call.in_place || !call.send_layouts.empty() || !call.recv_layouts.empty()) {
    return "tensors with gaps, and operations in place, are for host memory; pass contiguous tensors of their own";
  }
  return "";
}

// Returns what a transport cannot see in its batch; "" if the plan may run.
std::string host_problem(const Plan& plan, const Call& call) {
  constexpr size_t kMostStages = 2;  // on one host; arrange() makes more of them between hosts
  if (plan.stages().size() > kMostStages) {
    return "the plan has " + std::to_string(plan.stages().size()) + " stages; at most " + std::to_string(kMostStages) +
           " are possible";
  }
  const Sink sink = plan.stages().front().sink;
  if (sink == Sink::copy) return "";
  if (sink == Sink::sum || sink == Sink::fan_out) {
    return call.in_place || !call.recv_layouts.empty()
               ? "sums of rows, and rows that are received once and copied, need a packed output of their own"
               : "";
  }
  require_defined(call.fold, call.dtype);
  const size_t bytes = plan.recvs().empty() ? 0 : plan.recvs().front().bytes;
  if (bytes % call.dtype.bytes() == 0) return "";
  return std::to_string(bytes) + " bytes are no whole number of " + to_string(call.dtype);
}

}  // namespace

Plan Communicator::plan_allreduce(size_t elem_bytes, size_t elems, Memory memory) const {
  if (memory != Memory::host) return Plan::allreduce(rank(), size(), elem_bytes, elems, false);
  const size_t most = state_->open(Op::allreduce)->most_at_once();
  return Plan::allreduce(rank(), size(), elem_bytes, elems, elems > most / std::max<size_t>(1, elem_bytes));
}

std::vector<StageChoice> Communicator::stage_choices() const {
  if (state_->topology != nullptr) return choices_between(*state_->topology);
  return choices_within(size(), state_->open(Op::allreduce)->most_at_once());
}

std::shared_ptr<Work> Communicator::start(const Plan& plan, std::span<const void* const> send,
                                          std::span<void* const> recv, const Call& call) {
  const bool on_host = call.memory == Memory::host;
  std::string reason;
  Code code = Code::invalid_argument;
  if (plan.rank() != rank() || plan.size() != size()) {
    reason = "the plan was made for rank " + std::to_string(plan.rank()) + " of " + std::to_string(plan.size()) +
             ", this is rank " + std::to_string(rank()) + " of " + std::to_string(size());
  } else if (!on_host && (call.op == Op::scan || call.op == Op::exscan)) {
    code = Code::unsupported;
    reason = std::string(to_string(call.op)) + " is for host memory: the vendors' libraries have no such call";
  } else {
    try {
      reason = on_host ? host_problem(plan, call) : device_problem(plan, call);
    } catch (const Error& error) {  // a fold that the dtype does not have
      code = error.code();
      reason = error.what();
    }
    if (reason.empty()) reason = layout_problem("send", plan.send_extents(), call.send_layouts);
    if (reason.empty()) reason = layout_problem("recv", plan.recv_extents(), call.recv_layouts);
  }
  if (!reason.empty()) {
    refuse(call, reason);
    throw Error(code, reason);
  }
  if (on_host) return start_on_host(plan, send, recv, call);
  state_->home.refuse_if_inherited();  // before the mutex, as in submit()
  const std::lock_guard order(state_->device_order);
  state_->device_blank.clear();
  prepare(*this, call,
          [&] { state_->put_stages(state_->device_blank, plan, send, recv, call.send_layouts, call.recv_layouts); });
  return start_on_device(state_->device_blank, call);
}

std::shared_ptr<Work> Communicator::start_on_host(const Plan& plan, std::span<const void* const> send,
                                                  std::span<void* const> recv, const Call& call) {
  std::optional<Plan> arranged;
  if (state_->topology != nullptr) {
    arranged = prepare(*this, call, [&] { return arrange(plan, call, *state_->topology); });
  }
  const Plan& staged = arranged ? *arranged : plan;
  WeightedSum sum;
  if (plan.summands() != nullptr) {
    sum = weighted_sum(plan, recv[0], call);
    prepare(*this, call, [&] { Summing(sum, call.dtype); });  // throws for dtypes that have no weighted sum
  }
  return state_->submit(call, [&](Batch& batch) {
    // Later stages send from the caller's buffer when the first one has overwritten it.
    const bool of_one = send.size() == 1 && recv.size() == 1;
    const bool copies_all = plan.folds()
                                ? state_->folds && of_one && overwrites_what_is_sent(plan, send[0], recv[0], call)
                                : call.in_place && staged.stages().size() > 1;
    if (copies_all) {
      const void* const copy = send_copy(batch, send[0], plan.send_extents()[0], call.send_layouts);
      state_->put_stages(batch, staged, {&copy, 1}, recv, {}, call.recv_layouts);
    } else {
      state_->put_stages(batch, staged, send, recv, call.send_layouts, call.recv_layouts);
      if (call.in_place && !plan.folds()) send_copy(batch);
    }
    batch.sum = sum;
    if (plan.copies() != nullptr) {
      batch.fan_out = std::make_shared<FanOut>(plan.copies(), recv, plan.recv_extents());
    }
  });
}

std::shared_ptr<Work> Communicator::try_start(const Plan& plan, std::span<const void* const> send,
                                              std::span<void* const> recv, const Call& call) {
  const Sink sink = plan.stages().front().sink;
  if (plan.stages().size() > 1 || sink == Sink::sum || sink == Sink::fan_out || call.in_place) return nullptr;
  if (plan.rank() != rank() || plan.size() != size() || call.memory != Memory::host) return nullptr;
  if (!call.send_layouts.empty() || !call.recv_layouts.empty()) return nullptr;
  // Only a transport that folds grants the claim that this needs.
  if (sink == Sink::fold && overwrites_what_is_sent(plan, send[0], recv[0], call)) return nullptr;
  return state_->try_submit(call, [&](Batch& batch) { state_->put_stages(batch, plan, send, recv, {}, {}); });
}

void Communicator::wait_to_read(const void* data, size_t bytes, std::span<const TensorLayout> layouts,
                                std::optional<Deadline> deadline) {
  state_->home.refuse_if_inherited();
  std::optional<Strides> strides;
  Footprint memory;
  memory.read(run_of(data, bytes, layouts, strides));
  state_->conflicting(memory).wait(state_->deadline(deadline));
}

}  // namespace a2a
