// The arguments of one operation, and starts of operations that do not wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "a2a/communicator.h"
#include "a2a/sharding.h"
#include "cpp/layouts.h"

namespace a2a_py {

using ReshardPtr = std::shared_ptr<const a2a::Reshard>;
using PlanPtr = std::shared_ptr<const a2a::Plan>;
using WorkPtr = std::shared_ptr<a2a::Work>;
using CountList = std::vector<int64_t>;
using When = std::optional<a2a::Deadline>;  // nothing: the default of an operation, no end of a wait

inline When deadline_after(double seconds) { return a2a::Deadline::after_seconds(seconds); }
inline bool has_passed(const When& until) { return until && until->passed(); }

// The arguments of Communicator::start. `listed` says which of the two forms of buffers is used. A resharding has one
// of its operations in the place of a plan.
struct Exchange {
  PlanPtr plan;
  ReshardPtr reshard;
  size_t operation = 0;
  KeptLayouts send_layouts, recv_layouts;
  int split_axis = 0, concat_axis = 0;          // the axes along which the two sides are divided
  std::vector<int64_t> send_shape, recv_shape;  // of tensors that are divided along an axis
  a2a::Call call;
  bool listed = false;
  const void* send = nullptr;
  void* recv = nullptr;
  std::vector<const void*> sends;
  std::vector<void*> recvs;
};

// Starts a message of one tensor. `kept` has its layout if it has gaps.
inline WorkPtr start_message(a2a::Communicator& comm, bool sends, void* data, size_t bytes, int peer, int64_t tag,
                             const a2a::Call& of, const KeptLayouts& kept) {
  const auto layouts = spans_of(kept);
  a2a::Call call = of;
  (sends ? call.send_layouts : call.recv_layouts) = layouts;
  return sends ? comm.send(data, bytes, peer, tag, call) : comm.recv(data, bytes, peer, tag, call);
}

// Whether an exchange moves so few bytes that its copies take no longer than releasing the GIL for them.
inline bool is_short(const Exchange& x) {
  constexpr size_t kShort = size_t{16} << 10;
  return !x.listed && x.call.memory == a2a::Memory::host &&
         x.plan->send_extents()[0] + x.plan->recv_extents()[0] <= kShort;
}

// Starts the exchange if it does not have to wait for a lock; otherwise returns nullptr. Requires the GIL.
inline WorkPtr try_start(a2a::Communicator& comm, const Exchange& x) {
  const bool packed = x.send_layouts.empty() && x.recv_layouts.empty();
  if (!packed || !is_short(x)) return nullptr;
  return comm.try_start(*x.plan, std::span(&x.send, 1), std::span(&x.recv, 1), x.call);
}

}  // namespace a2a_py
