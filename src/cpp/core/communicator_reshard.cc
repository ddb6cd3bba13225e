// Runs the plans of reshardings: the boxes of a tensor are buffers of their own, with the strides of the tensor.
#include <algorithm>
#include <string>
#include <utility>

#include "a2a/communicator.h"
#include "a2a/sharding.h"
#include "core/communicator_state.h"
#include "core/sharding/boxes.h"
#include "core/stages/topology.h"

namespace a2a {
namespace {

// One side of an operation: the local tensors, and their boxes as buffers.
class ReshardSide {
 public:
  ReshardSide(const char* name, const Reshard& reshard, bool is_src, std::span<const void* const> tensors,
              std::span<const TensorLayout> layouts)
      : name_(name), reshard_(reshard), is_src_(is_src), tensors_(tensors), layouts_(layouts) {
    if (tensors.size() != reshard.tensors() || (!layouts.empty() && layouts.size() != tensors.size())) {
      sharding::refuse(std::string(name) + " has " + std::to_string(tensors.size()) + " tensors and " +
                       std::to_string(layouts.size()) + " layouts, but the plan has " +
                       std::to_string(reshard.tensors()) + " tensors");
    }
    strides_.resize(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) set_strides(i);
  }

  // Requires that this object stays where it is.
  void set_buffers(std::span<const Reshard::Buffer> buffers) {
    shapes_.reserve(buffers.size());
    for (const auto& [tensor, box] : buffers) {
      const std::vector<int64_t>& strides = strides_[tensor];
      const auto* first = static_cast<const std::byte*>(tensors_[tensor]);
      for (size_t i = 0; i < strides.size(); ++i) first += box.begin[i] * strides[i];
      shapes_.push_back(box.shape());
      addresses.push_back(const_cast<std::byte*>(first));
      boxes.push_back({shapes_.back(), strides, reshard_.dtype(tensor).bytes()});
    }
  }

  std::vector<void*> addresses;
  std::vector<TensorLayout> boxes;

 private:
  // Those of the layout that was given, otherwise those of a packed tensor.
  void set_strides(size_t tensor) {
    const std::optional<Box>& box = is_src_ ? reshard_.src(tensor) : reshard_.dst(tensor);
    if (!box) return;
    const std::vector<int64_t> shape = box->shape();
    const size_t elem_bytes = reshard_.dtype(tensor).bytes();
    std::vector<int64_t>& strides = strides_[tensor];
    if (layouts_.empty()) {
      strides.resize(shape.size());
      auto total = static_cast<int64_t>(elem_bytes);
      for (size_t i = shape.size(); i-- > 0; total *= shape[i]) strides[i] = total;
    } else {
      const TensorLayout& layout = layouts_[tensor];
      const bool fits = box->elems() == 0 || (std::ranges::equal(layout.shape, shape) &&
                                              layout.strides.size() == shape.size() && layout.elem_bytes == elem_bytes);
      if (!fits)
        sharding::refuse(std::string(name_) + "_layouts[" + std::to_string(tensor) +
                         "] is not that of the rank's part");
      strides.assign(layout.strides.begin(), layout.strides.end());
    }
    if (box->elems() > 0 && tensors_[tensor] == nullptr) {
      sharding::refuse(std::string(name_) + "[" + std::to_string(tensor) + "] is missing");
    }
  }

  const char* const name_;
  const Reshard& reshard_;
  const bool is_src_;
  const std::span<const void* const> tensors_;
  const std::span<const TensorLayout> layouts_;
  std::vector<std::vector<int64_t>> strides_, shapes_;
};

}  // namespace

std::vector<int> Communicator::hosts() const {
  const Topology* const topology = state_->topology.get();
  return topology != nullptr ? topology->host : std::vector<int>(static_cast<size_t>(size()));
}

Reshard Communicator::plan_reshard(std::span<const Resharding> tensors, bool all_know_dtypes) const {
  const Topology* const topology = state_->topology.get();
  const std::span<const int> hosts = topology != nullptr ? std::span(topology->host) : std::span<const int>();
  return Reshard::make(rank(), size(), tensors, hosts, all_know_dtypes);
}

std::shared_ptr<Work> Communicator::start(const Reshard& reshard, size_t part, std::span<const void* const> send,
                                          std::span<void* const> recv, const Call& call) {
  Call with = call;
  with.op = Op::reshard;
  if (part >= reshard.parts().size()) {
    const std::string reason =
        "the plan has " + std::to_string(reshard.parts().size()) + " operations, and part is " + std::to_string(part);
    refuse(with, reason);
    throw Error(Code::invalid_argument, reason);
  }
  const Reshard::Part& one = reshard.parts()[part];
  with.dtype = one.dtype;
  with.fold = one.fold;
  with.unit_bytes = one.dtype.bytes();
  const auto [sends, recvs] = prepare(*this, with, [&] {
    const std::span<const void* const> written(recv.data(), recv.size());
    auto sides = std::pair(std::make_unique<ReshardSide>("send", reshard, true, send, call.send_layouts),
                           std::make_unique<ReshardSide>("recv", reshard, false, written, call.recv_layouts));
    sides.first->set_buffers(one.sends);
    sides.second->set_buffers(one.recvs);
    return sides;
  });
  with.send_layouts = sends->boxes;
  with.recv_layouts = recvs->boxes;
  return start(one.plan, std::span<const void* const>(sends->addresses.data(), sends->addresses.size()),
               recvs->addresses, with);
}

}  // namespace a2a
