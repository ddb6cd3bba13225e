// HCCL: reductions, and what one rank gives to all.
#include <algorithm>
#include <numeric>
#include <optional>

#include "ascend/hccl_state.h"
#include "engine/fold.h"

namespace fake {
namespace {

constexpr uint64_t kMostElements = 0x7FFFFFFFF;

// What the documentation of the products A2 and A3 says: these types, and no products of two of them.
std::optional<Number> number_of(HcclDataType type, HcclReduceOp op) {
  switch (type) {
    case HCCL_DATA_TYPE_INT8:
      return Number::int8;
    case HCCL_DATA_TYPE_INT16:
      return op == HCCL_REDUCE_PROD ? std::nullopt : std::optional(Number::int16);
    case HCCL_DATA_TYPE_INT32:
      return Number::int32;
    case HCCL_DATA_TYPE_INT64:
      return Number::int64;
    case HCCL_DATA_TYPE_FP16:
      return Number::float16;
    case HCCL_DATA_TYPE_BFP16:
      return op == HCCL_REDUCE_PROD ? std::nullopt : std::optional(Number::bfloat16);
    case HCCL_DATA_TYPE_FP32:
      return Number::float32;
    default:
      return std::nullopt;
  }
}

// Adds a part to or from that rank; its address is a multiple of an element's size.
HcclResult add_part(const HcclTarget& target, const void* at, uint64_t count, HcclDataType type, int peer,
                    std::vector<Part>& parts) {
  const size_t element = hccl_element_bytes(type);
  if (element == 0) return hccl_refuse(HCCL_E_NOT_SUPPORT, "data type " + std::to_string(type) + " is not supported");
  if (count > kMostElements) return hccl_refuse(HCCL_E_PARA, "a count above 0x7FFFFFFFF");
  if (reinterpret_cast<uintptr_t>(at) % element != 0) return hccl_refuse(HCCL_E_PARA, "an address is not aligned");
  std::string why;
  const auto region = device_region(at, count * element, target.comm->device, why);
  if (!region) return hccl_refuse(HCCL_E_PARA, why);
  parts.push_back({peer, *region, {0, type, 0, count, count * element}});
  return HCCL_SUCCESS;
}

// One rank's part in a reduction: what it gives to each of these peers, so many bytes behind each other, and where what
// all give to it is folded, which may be where its own part is.
struct Given {
  void* sendBuf;
  std::vector<int> to;
  size_t apart;
};
HcclResult reduce(const HcclTarget& target, HcclCall call, Operation operation, const Given& given, void* recvBuf,
                  uint64_t count, HcclDataType type, HcclReduceOp op) {
  if (count == 0) return HCCL_SUCCESS;
  A2A_FAKE_PTR(given.sendBuf);
  A2A_FAKE_PTR(recvBuf);
  if (op < HCCL_REDUCE_SUM || op > HCCL_REDUCE_MIN) return hccl_refuse(HCCL_E_NOT_SUPPORT, "no such operation");
  const auto number = number_of(type, op);
  if (!number) {
    return hccl_refuse(HCCL_E_NOT_SUPPORT,
                       "data type " + std::to_string(type) + " is not supported for operation " + std::to_string(op));
  }
  auto* from = static_cast<std::byte*>(given.sendBuf);
  for (const int peer : given.to) {
    if (const HcclResult wrong = add_part(target, from, count, type, peer, operation.sends)) return wrong;
    from += given.apart;
  }
  std::vector<Part> output;  // no rank may do without
  if (const HcclResult wrong = add_part(target, recvBuf, count, type, target.comm->rank, output)) return wrong;
  if (std::ranges::find(given.to, target.comm->rank) != given.to.end()) {
    for (const Part& part : operation.sends) {
      const bool own = given.apart == 0 || part.peer == target.comm->rank;
      if (overlap(part.memory, output[0].memory) && (!own || part.memory.data != output[0].memory.data)) {
        return hccl_refuse(HCCL_E_PARA, "the output overlaps what is sent");
      }
    }
    const auto ranks = target.comm->size;
    const FoldOp ops[] = {FoldOp::sum, FoldOp::prod, FoldOp::max, FoldOp::min};
    Folding fold = folding(output[0].memory, *number, ops[op], ranks, output[0].header);
    operation.recvs = std::move(fold.recvs);
    operation.then = std::move(fold.then);
  }
  return hccl_submit(target, with(call, op), std::move(operation));
}

std::vector<int> all_of(const HcclTarget& target) {
  std::vector<int> ranks(static_cast<size_t>(target.comm->size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

HcclResult check_root(const HcclTarget& target, uint32_t root) {
  if (root < static_cast<uint32_t>(target.comm->size)) return HCCL_SUCCESS;
  return hccl_refuse(HCCL_E_PARA, "no rank " + std::to_string(root));
}

}  // namespace
}  // namespace fake

using namespace fake;

HcclResult HcclAllReduce(void* sendBuf, void* recvBuf, uint64_t count, HcclDataType dataType, HcclReduceOp op,
                         HcclComm comm, aclrtStream stream) {
  HcclTarget target;
  if (const HcclResult wrong = hccl_target(comm, stream, target)) return wrong;
  return reduce(target, HcclCall::allreduce, {"HcclAllReduce", {}, {}, true, {}}, {sendBuf, all_of(target), 0}, recvBuf,
                count, dataType, op);
}

HcclResult HcclReduceScatter(void* sendBuf, void* recvBuf, uint64_t recvCount, HcclDataType dataType, HcclReduceOp op,
                             HcclComm comm, aclrtStream stream) {
  HcclTarget target;
  if (const HcclResult wrong = hccl_target(comm, stream, target)) return wrong;
  const size_t bytes = recvCount * hccl_element_bytes(dataType);
  return reduce(target, HcclCall::reduce_scatter, {"HcclReduceScatter", {}, {}, true, {}},
                {sendBuf, all_of(target), bytes}, recvBuf, recvCount, dataType, op);
}

HcclResult HcclReduce(void* sendBuf, void* recvBuf, uint64_t count, HcclDataType dataType, HcclReduceOp op,
                      uint32_t root, HcclComm comm, aclrtStream stream) {
  HcclTarget target;
  if (const HcclResult wrong = hccl_target(comm, stream, target)) return wrong;
  if (const HcclResult wrong = check_root(target, root)) return wrong;
  return reduce(target, HcclCall::reduce, {"HcclReduce", {}, {}, true, {}}, {sendBuf, {static_cast<int>(root)}, 0},
                recvBuf, count, dataType, op);
}

HcclResult HcclBroadcast(void* buf, uint64_t count, HcclDataType dataType, uint32_t root, HcclComm comm,
                         aclrtStream stream) {
  if (count == 0) return HCCL_SUCCESS;
  A2A_FAKE_PTR(buf);
  HcclTarget target;
  if (const HcclResult wrong = hccl_target(comm, stream, target)) return wrong;
  if (const HcclResult wrong = check_root(target, root)) return wrong;
  Operation operation{"HcclBroadcast", {}, {}, true, {}};
  const int from = static_cast<int>(root);
  if (target.comm->rank != from) {
    if (const HcclResult wrong = add_part(target, buf, count, dataType, from, operation.recvs)) return wrong;
  }
  for (int peer = 0; peer < target.comm->size && target.comm->rank == from; ++peer) {
    if (peer == from) continue;
    if (const HcclResult wrong = add_part(target, buf, count, dataType, peer, operation.sends)) return wrong;
  }
  return hccl_submit(target, HcclCall::broadcast, std::move(operation));
}

// sendBuf of the root alone counts.
HcclResult HcclScatter(void* sendBuf, void* recvBuf, uint64_t recvCount, HcclDataType dataType, uint32_t root,
                       HcclComm comm, aclrtStream stream) {
  if (recvCount == 0) return HCCL_SUCCESS;
  A2A_FAKE_PTR(recvBuf);
  HcclTarget target;
  if (const HcclResult wrong = hccl_target(comm, stream, target)) return wrong;
  if (const HcclResult wrong = check_root(target, root)) return wrong;
  Operation operation{"HcclScatter", {}, {}, true, {}};
  const int from = static_cast<int>(root);
  if (const HcclResult wrong = add_part(target, recvBuf, recvCount, dataType, from, operation.recvs)) return wrong;
  if (target.comm->rank == from) {
    A2A_FAKE_PTR(sendBuf);
    auto* part = static_cast<std::byte*>(sendBuf);
    for (int peer = 0; peer < target.comm->size; ++peer) {
      if (const HcclResult wrong = add_part(target, part, recvCount, dataType, peer, operation.sends)) return wrong;
      part += recvCount * hccl_element_bytes(dataType);
    }
  }
  return hccl_submit(target, HcclCall::scatter, std::move(operation));
}
