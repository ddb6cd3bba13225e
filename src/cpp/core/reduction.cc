#include "core/reduction.h"

#include "core/packed_copy.h"

namespace a2a {
bool overwrites_what_is_sent(const Plan& plan, const void* send, const void* recv, const Call& call) {
  if (plan.recvs().empty()) return false;
  if (!call.send_layouts.empty() || !call.recv_layouts.empty()) {
    const auto from = memory_of(send, plan.send_extents()[0], call.send_layouts);
    const auto to = memory_of(recv, plan.recv_extents()[0], call.recv_layouts);
    return from.data() < to.data() + to.size() && to.data() < from.data() + from.size();
  }
  const Segment& output = plan.recvs().front();
  const auto* from = static_cast<const std::byte*>(send);
  const auto* to = static_cast<const std::byte*>(recv) + output.offset;
  for (const Segment& s : plan.sends()) {
    const std::byte* data = from + s.offset;
    if (s.peer == plan.rank() && data == to) continue;  // each element is read before it is written
    if (data < to + output.bytes && to < data + s.bytes) return true;
  }
  return false;
}

}  // namespace a2a
