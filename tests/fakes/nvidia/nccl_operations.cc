// NCCL: operations. Each leaves its messages in the open group.
#include <algorithm>
#include <numeric>

#include "engine/fold.h"
#include "nvidia/nccl_group.h"

namespace fake {
namespace {

// What messages belong to; those of a reduction say which.
enum Kind : uint32_t { kMessage, kMoved, kFolded };

size_t element_bytes(ncclDataType_t type) {
  constexpr size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return bytes[type];
}

ncclResult_t add_part(const NcclComm& comm, const char* name, const void* at, size_t count, ncclDataType_t type,
                      int peer, uint32_t kind, std::vector<Part>& parts) {
  const size_t bytes = count * element_bytes(type);
  std::string why;
  const auto region = device_region(at, bytes, comm.device, why);
  if (!region) return nccl_refuse(ncclInvalidArgument, std::string(name) + " : " + why);
  parts.push_back({peer, *region, {kind, type, 0, count, bytes}});
  return ncclSuccess;
}

ncclResult_t bad_peer(const NcclComm& comm, const char* name, int peer) {
  if (peer >= 0 && peer < comm.size) return ncclSuccess;
  return nccl_refuse(ncclInvalidArgument, std::string(name) + " : invalid root " + std::to_string(peer) +
                                              " (root should be in the 0.." + std::to_string(comm.size - 1) +
                                              " range)");
}

ncclResult_t check_foldable(const NcclComm& comm, const char* name, ncclDataType_t type, ncclRedOp_t op) {
  if (op < 0 || op >= ncclNumOps) {
    return nccl_refuse(ncclInvalidArgument, std::string(name) + " : invalid reduction operation " + std::to_string(op));
  }
  if (type != ncclFloat8e4m3 && type != ncclFloat8e5m2) return ncclSuccess;
  if (nccl_version() < 22400) {
    return nccl_refuse(ncclInvalidArgument, std::string(name) + " : invalid type " + std::to_string(type));
  }
  // As 2.28.9 did with one rank.
  if (comm.size == 1 && op == ncclAvg) return nccl_refuse(ncclInvalidArgument, "an average of float8 of one rank");
  if (control_number("A2A_FAKE_CAPABILITY", 9) >= 9) return ncclSuccess;
  return nccl_refuse(ncclInvalidArgument, "FP8 reduction support begins with sm90 capable devices.");
}

// Adds what this rank gives to each of these peers, so many bytes behind each other, and what it gets: the fold of what
// all ranks give to it, which may be where its own part is.
ncclResult_t add_reduction(const NcclComm& comm, NcclEnqueued& into, const void* sendbuff, const std::vector<int>& to,
                           size_t apart, void* recvbuff, size_t count, ncclDataType_t type, ncclRedOp_t op) {
  constexpr Number kNumbers[] = {Number::int8,    Number::uint8,    Number::int32,      Number::uint32,
                                 Number::int64,   Number::uint64,   Number::float16,    Number::float32,
                                 Number::float64, Number::bfloat16, Number::float8e4m3, Number::float8e5m2};
  constexpr FoldOp kOps[] = {FoldOp::sum, FoldOp::prod, FoldOp::max, FoldOp::min, FoldOp::avg};
  if (const ncclResult_t wrong = check_foldable(comm, into.name, type, op)) return wrong;
  const uint32_t kind = kFolded + static_cast<uint32_t>(op);
  size_t offset = 0;
  for (const int peer : to) {
    const auto* const from = static_cast<const std::byte*>(sendbuff) + offset;
    if (const ncclResult_t wrong = add_part(comm, into.name, from, count, type, peer, kind, into.sends)) return wrong;
    offset += apart;
  }
  if (std::ranges::find(to, comm.rank) == to.end()) return ncclSuccess;
  std::string why;
  const auto output = device_region(recvbuff, count * element_bytes(type), comm.device, why);
  if (!output) return nccl_refuse(ncclInvalidArgument, std::string(into.name) + " : " + why);
  for (const Part& part : into.sends) {
    const bool in_place = part.memory.data == output->data && (apart == 0 || part.peer == comm.rank);
    if (!in_place && overlap(part.memory, *output)) {
      return nccl_refuse(ncclInvalidArgument, "a send and a receive buffer overlap");
    }
  }
  Folding fold = folding(*output, kNumbers[type], kOps[op], comm.size, {kind, type, 0, count, output->bytes});
  into.recvs = std::move(fold.recvs);
  into.then = std::move(fold.then);
  return ncclSuccess;
}

std::vector<int> all_of(const NcclComm& comm) {
  std::vector<int> ranks(static_cast<size_t>(comm.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace
}  // namespace fake

using namespace fake;

ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return nccl_call("Send", comm, datatype, stream, false, [&](const NcclComm& found, NcclEnqueued& into) {
    if (const ncclResult_t wrong = bad_peer(found, "Send", peer)) return wrong;
    return add_part(found, "Send", sendbuff, count, datatype, peer, kMessage, into.sends);
  });
}

ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return nccl_call("Recv", comm, datatype, stream, false, [&](const NcclComm& found, NcclEnqueued& into) {
    if (const ncclResult_t wrong = bad_peer(found, "Recv", peer)) return wrong;
    return add_part(found, "Recv", recvbuff, count, datatype, peer, kMessage, into.recvs);
  });
}

ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream) {
  return nccl_call("AllGather", comm, datatype, stream, true, [&](const NcclComm& found, NcclEnqueued& into) {
    const size_t bytes = sendcount * element_bytes(datatype);
    ncclResult_t wrong = ncclSuccess;
    for (int peer = 0; peer < found.size && !wrong; ++peer) {
      auto* const at = static_cast<std::byte*>(recvbuff) + static_cast<size_t>(peer) * bytes;
      wrong = add_part(found, "AllGather", sendbuff, sendcount, datatype, peer, kMoved, into.sends);
      if (!wrong) wrong = add_part(found, "AllGather", at, sendcount, datatype, peer, kMoved, into.recvs);
    }
    return wrong;
  });
}

// A group of messages inside.
ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                          cudaStream_t stream) {
  return nccl_call("AlltoAll", comm, datatype, stream, false, [&](const NcclComm& found, NcclEnqueued& into) {
    const size_t bytes = count * element_bytes(datatype);
    ncclResult_t wrong = ncclSuccess;
    for (int peer = 0; peer < found.size && !wrong; ++peer) {
      const size_t offset = static_cast<size_t>(peer) * bytes;
      const auto* const from = static_cast<const std::byte*>(sendbuff) + offset;
      auto* const to = static_cast<std::byte*>(recvbuff) + offset;
      wrong = add_part(found, "AlltoAll", from, count, datatype, peer, kMessage, into.sends);
      if (!wrong) wrong = add_part(found, "AlltoAll", to, count, datatype, peer, kMessage, into.recvs);
    }
    return wrong;
  });
}

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return nccl_call("AllReduce", comm, datatype, stream, true, [&](const NcclComm& found, NcclEnqueued& into) {
    return add_reduction(found, into, sendbuff, all_of(found), 0, recvbuff, count, datatype, op);
  });
}

ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return nccl_call("ReduceScatter", comm, datatype, stream, true, [&](const NcclComm& found, NcclEnqueued& into) {
    const size_t bytes = recvcount * element_bytes(datatype);
    return add_reduction(found, into, sendbuff, all_of(found), bytes, recvbuff, recvcount, datatype, op);
  });
}

// Ranks that are not the root need no output.
ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return nccl_call("Reduce", comm, datatype, stream, true, [&](const NcclComm& found, NcclEnqueued& into) {
    if (const ncclResult_t wrong = bad_peer(found, "Reduce", root)) return wrong;
    return add_reduction(found, into, sendbuff, {root}, 0, recvbuff, count, datatype, op);
  });
}

ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return nccl_call("Broadcast", comm, datatype, stream, true, [&](const NcclComm& found, NcclEnqueued& into) {
    ncclResult_t wrong = bad_peer(found, "Broadcast", root);
    for (int peer = 0; peer < found.size && !wrong && found.rank == root; ++peer) {
      if (peer == root && sendbuff == recvbuff) continue;
      wrong = add_part(found, "Broadcast", sendbuff, count, datatype, peer, kMoved, into.sends);
    }
    if (wrong || (found.rank == root && sendbuff == recvbuff)) return wrong;
    return add_part(found, "Broadcast", recvbuff, count, datatype, root, kMoved, into.recvs);
  });
}
