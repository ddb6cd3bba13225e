// HCCL: operations (what is in libhccl.so of every release).
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <set>

#include "ascend/hccl_state.h"

namespace fake {
namespace {

constexpr uint64_t kMostElements = 0x7FFFFFFFF;

// Counts and displacements are arrays of uint64 in host memory, one element for each rank, in elements.
struct Layout {
  std::vector<uint64_t> counts, displs;
};

std::vector<uint64_t> copy_of(const void* array, size_t length) {
  std::vector<uint64_t> copy(length);
  std::memcpy(copy.data(), array, length * sizeof(uint64_t));
  return copy;
}

bool in_device_memory(std::initializer_list<const void*> arrays) {
  for (const void* array : arrays) {
    const auto found = find_allocation(array);
    if (found && found->device >= 0) return true;
  }
  return false;
}

// What is at that address now; nothing if it is not mapped any more, which the kernel tells without a crash.
std::vector<uint64_t> look_again(const void* array, size_t length) {
  const size_t bytes = length * sizeof(uint64_t);
  std::vector<uint64_t> now(length);
  const int file = memfd_create("a2a-fake-counts", MFD_CLOEXEC);
  const bool same = syscall(SYS_write, file, array, bytes) == static_cast<long>(bytes) &&
                    pread(file, now.data(), bytes, 0) == static_cast<ssize_t>(bytes);
  close(file);
  return same ? now : std::vector<uint64_t>{};
}

// Some releases read the arrays when the call is made, others when the operation runs: they have to stay as they are
// until the stream was synchronised. A2A_FAKE_COUNTS=early is the release that does not need it.
std::function<std::string()> arrays_stay(std::vector<std::pair<const void*, std::vector<uint64_t>>> arrays) {
  if (control("A2A_FAKE_COUNTS", "late") == "early") return {};
  return [arrays = std::move(arrays)]() -> std::string {
    for (const auto& [array, at_call] : arrays) {
      if (look_again(array, at_call.size()) != at_call) {
        return "counts or displacements were changed or freed before the stream was synchronised";
      }
    }
    return "";
  };
}

// The rules for one side of an exchange; adds a part for each peer.
HcclResult add_parts(const HcclTarget& target, const char* what, const void* buffer, const Layout& layout,
                     HcclDataType type, std::vector<Part>& parts) {
  const size_t element = hccl_element_bytes(type);
  if (element == 0) return hccl_refuse(HCCL_E_NOT_SUPPORT, "data type " + std::to_string(type) + " is not supported");
  for (size_t peer = 0; peer < layout.counts.size(); ++peer) {
    const uint64_t count = layout.counts[peer], displ = layout.displs[peer];
    if (count > kMostElements) return hccl_refuse(HCCL_E_PARA, std::string(what) + ": a count above 0x7FFFFFFFF");
    if (count > 0 && !buffer) return hccl_refuse(HCCL_E_PTR, std::string(what) + " is null, but not all counts are 0");
    std::string why;
    if (displ > UINT64_MAX / 32) return hccl_refuse(HCCL_E_PARA, std::string(what) + ": a displacement out of range");
    // No bytes need no address, wherever the displacement points.
    const auto* const at = count ? static_cast<const std::byte*>(buffer) + displ * element : nullptr;
    const auto region = device_region(at, count * element, target.comm->device, why);
    if (!region) return hccl_refuse(HCCL_E_PARA, std::string(what) + ": " + why);
    parts.push_back({static_cast<int>(peer), *region, {0, type, 0, count, count * element}});
  }
  return HCCL_SUCCESS;
}

HcclResult exchange(const HcclTarget& target, HcclCall call, Operation operation, const void* sendBuf,
                    const Layout& send, const void* recvBuf, const Layout& recv, HcclDataType type) {
  if (sendBuf && sendBuf == recvBuf) {
    return hccl_refuse(HCCL_E_PARA, std::string(operation.name) + " does not support in-place operation.");
  }
  if (const HcclResult wrong = add_parts(target, "sendBuf", sendBuf, send, type, operation.sends)) return wrong;
  if (const HcclResult wrong = add_parts(target, "recvBuf", recvBuf, recv, type, operation.recvs)) return wrong;
  return hccl_submit(target, call, std::move(operation));
}

Layout equal_parts(int ranks, uint64_t count) {
  Layout layout;
  for (int peer = 0; peer < ranks; ++peer) {
    layout.counts.push_back(count);
    layout.displs.push_back(static_cast<uint64_t>(peer) * count);
  }
  return layout;
}

Layout packed(std::vector<uint64_t> counts) {
  Layout layout{std::move(counts), {}};
  uint64_t next = 0;
  for (const uint64_t count : layout.counts) {
    layout.displs.push_back(next);
    next += count;
  }
  return layout;
}

// HcclSend and HcclRecv: paired and synchronous, and never with oneself.
HcclResult point_to_point(const char* name, void* buffer, uint64_t count, HcclDataType type, uint32_t peer,
                          HcclComm comm, aclrtStream stream) {
  const bool sends = std::string_view(name) == "HcclSend";
  if (count == 0) return HCCL_SUCCESS;  // this rank alone decides it, before any other rule
  A2A_FAKE_PTR(buffer);
  HcclTarget target;
  if (const HcclResult wrong = hccl_target(comm, stream, target)) return wrong;
  if (peer == static_cast<uint32_t>(target.comm->rank)) {
    return hccl_refuse(HCCL_E_NOT_SUPPORT,
                       sends ? "destRank cannot be equal to self." : "srcRank cannot be equal to self.");
  }
  if (peer >= static_cast<uint32_t>(target.comm->size)) {
    return hccl_refuse(HCCL_E_PARA, "no rank " + std::to_string(peer));
  }
  Operation operation{name, {}, {}, false, {}};
  std::vector<Part>& parts = sends ? operation.sends : operation.recvs;
  if (const HcclResult wrong = add_parts(target, name, buffer, {{count}, {0}}, type, parts)) return wrong;
  parts.back().peer = static_cast<int>(peer);
  return hccl_submit(target, HcclCall::send_recv, std::move(operation));
}

}  // namespace
}  // namespace fake

using namespace fake;

HcclResult HcclAlltoAllV(const void* sendBuf, const void* sendCounts, const void* sdispls, HcclDataType,
                         const void* recvBuf, const void* recvCounts, const void* rdispls, HcclDataType recvType,
                         HcclComm comm, aclrtStream stream) {
  A2A_FAKE_PTR(sendCounts);
  A2A_FAKE_PTR(sdispls);
  A2A_FAKE_PTR(recvCounts);
  A2A_FAKE_PTR(rdispls);
  HcclTarget target;
  if (const HcclResult wrong = hccl_target(comm, stream, target)) return wrong;
  if (in_device_memory({sendCounts, sdispls, recvCounts, rdispls})) {
    return hccl_refuse(HCCL_E_PARA, "counts and displacements are host arrays");
  }
  const auto ranks = static_cast<size_t>(target.comm->size);
  const Layout send{copy_of(sendCounts, ranks), copy_of(sdispls, ranks)};
  const Layout recv{copy_of(recvCounts, ranks), copy_of(rdispls, ranks)};
  Operation operation{"HcclAlltoAllV", {}, {}, true, {}};
  operation.still_valid = arrays_stay(
      {{sendCounts, send.counts}, {sdispls, send.displs}, {recvCounts, recv.counts}, {rdispls, recv.displs}});
  // The type of the sender is ignored.
  return exchange(target, HcclCall::alltoallv, std::move(operation), sendBuf, send, recvBuf, recv, recvType);
}

// Counts are elements for each peer.
HcclResult HcclAlltoAll(const void* sendBuf, uint64_t sendCount, HcclDataType sendType, const void* recvBuf,
                        uint64_t recvCount, HcclDataType recvType, HcclComm comm, aclrtStream stream) {
  if (sendCount == 0 && recvCount == 0) return HCCL_SUCCESS;  // before any other rule
  HcclTarget target;
  if (const HcclResult wrong = hccl_target(comm, stream, target)) return wrong;
  A2A_FAKE_PTR(sendBuf);
  A2A_FAKE_PTR(recvBuf);
  if (sendCount != recvCount || sendType != recvType) {
    return hccl_refuse(HCCL_E_PARA, "HcclAlltoAll: counts or types of both sides differ");
  }
  const Layout layout = equal_parts(target.comm->size, sendCount);
  return exchange(target, HcclCall::alltoall, {"HcclAlltoAll", {}, {}, true, {}}, sendBuf, layout, recvBuf, layout,
                  recvType);
}

// sendCountMatrix[i][j] elements go from rank i to rank j, packed in rank order.
HcclResult HcclAlltoAllVC(const void* sendBuf, const void* sendCountMatrix, HcclDataType, const void* recvBuf,
                          HcclDataType recvType, HcclComm comm, aclrtStream stream) {
  A2A_FAKE_PTR(sendCountMatrix);
  HcclTarget target;
  if (const HcclResult wrong = hccl_target(comm, stream, target)) return wrong;
  if (in_device_memory({sendCountMatrix})) return hccl_refuse(HCCL_E_PARA, "counts are a host array");
  const auto ranks = static_cast<size_t>(target.comm->size), rank = static_cast<size_t>(target.comm->rank);
  const std::vector<uint64_t> matrix = copy_of(sendCountMatrix, ranks * ranks);
  std::vector<uint64_t> send, recv;
  for (size_t peer = 0; peer < ranks; ++peer) {
    send.push_back(matrix[rank * ranks + peer]);
    recv.push_back(matrix[peer * ranks + rank]);
  }
  Operation operation{"HcclAlltoAllVC", {}, {}, true, arrays_stay({{sendCountMatrix, matrix}})};
  return exchange(target, HcclCall::alltoallvc, std::move(operation), sendBuf, packed(send), recvBuf, packed(recv),
                  recvType);
}

HcclResult HcclAllGather(void* sendBuf, void* recvBuf, uint64_t sendCount, HcclDataType dataType, HcclComm comm,
                         aclrtStream stream) {
  A2A_FAKE_PTR(sendBuf);
  A2A_FAKE_PTR(recvBuf);
  HcclTarget target;
  if (const HcclResult wrong = hccl_target(comm, stream, target)) return wrong;
  const auto ranks = static_cast<size_t>(target.comm->size);
  Operation operation{"HcclAllGather", {}, {}, true, {}};
  const Layout same{std::vector<uint64_t>(ranks, sendCount), std::vector<uint64_t>(ranks, 0)};
  const Layout parts = equal_parts(target.comm->size, sendCount);
  if (const HcclResult wrong = add_parts(target, "sendBuf", sendBuf, same, dataType, operation.sends)) return wrong;
  if (const HcclResult wrong = add_parts(target, "recvBuf", recvBuf, parts, dataType, operation.recvs)) return wrong;
  return hccl_submit(target, HcclCall::allgather, std::move(operation));
}

HcclResult HcclSend(void* sendBuf, uint64_t count, HcclDataType dataType, uint32_t destRank, HcclComm comm,
                    aclrtStream stream) {
  return point_to_point("HcclSend", sendBuf, count, dataType, destRank, comm, stream);
}

HcclResult HcclRecv(void* recvBuf, uint64_t count, HcclDataType dataType, uint32_t srcRank, HcclComm comm,
                    aclrtStream stream) {
  return point_to_point("HcclRecv", recvBuf, count, dataType, srcRank, comm, stream);
}

HcclResult HcclAllGatherV(void* sendBuf, uint64_t sendCount, void* recvBuf, const void* recvCounts,
                          const void* recvDispls, HcclDataType dataType, HcclComm comm, aclrtStream stream) {
  A2A_FAKE_PTR(recvCounts);
  A2A_FAKE_PTR(recvDispls);
  HcclTarget target;
  if (const HcclResult wrong = hccl_target(comm, stream, target)) return wrong;
  const auto ranks = static_cast<size_t>(target.comm->size);
  const Layout recv{copy_of(recvCounts, ranks), copy_of(recvDispls, ranks)};
  const Layout same{std::vector<uint64_t>(ranks, sendCount), std::vector<uint64_t>(ranks, 0)};
  Operation operation{"HcclAllGatherV", {}, {}, true, {}};
  operation.still_valid = arrays_stay({{recvCounts, recv.counts}, {recvDispls, recv.displs}});
  if (const HcclResult wrong = add_parts(target, "sendBuf", sendBuf, same, dataType, operation.sends)) return wrong;
  if (const HcclResult wrong = add_parts(target, "recvBuf", recvBuf, recv, dataType, operation.recvs)) return wrong;
  return hccl_submit(target, HcclCall::allgatherv, std::move(operation));
}

// One rank's items do not wait for each other; across ranks they match one to one. "The task list must not contain
// duplicate sending or receiving tasks pointed to the same rank."
HcclResult HcclBatchSendRecv(HcclSendRecvItem* sendRecvInfo, uint32_t itemNum, HcclComm comm, aclrtStream stream) {
  if (itemNum == 0) return HCCL_SUCCESS;
  A2A_FAKE_PTR(sendRecvInfo);
  HcclTarget target;
  if (const HcclResult wrong = hccl_target(comm, stream, target)) return wrong;
  Operation operation{"HcclBatchSendRecv", {}, {}, false, {}};
  std::vector<Header> self[2];
  std::set<std::pair<int, uint32_t>> seen;
  for (uint32_t i = 0; i < itemNum; ++i) {
    const HcclSendRecvItem& item = sendRecvInfo[i];
    if (item.sendRecvType != HCCL_SEND && item.sendRecvType != HCCL_RECV) {
      return hccl_refuse(HCCL_E_PARA, "an item neither sends nor receives");
    }
    if (item.remoteRank >= static_cast<uint32_t>(target.comm->size)) {
      return hccl_refuse(HCCL_E_PARA, "no rank " + std::to_string(item.remoteRank));
    }
    std::vector<Part>& parts = item.sendRecvType == HCCL_SEND ? operation.sends : operation.recvs;
    if (const HcclResult wrong = add_parts(target, "item", item.buf, {{item.count}, {0}}, item.dataType, parts)) {
      return wrong;
    }
    parts.back().peer = static_cast<int>(item.remoteRank);
    if (!seen.insert({item.sendRecvType, item.remoteRank}).second) {
      return hccl_refuse(HCCL_E_PARA,
                         "HcclBatchSendRecv: two items of one direction for rank " + std::to_string(item.remoteRank));
    }
    if (parts.back().peer == target.comm->rank) self[item.sendRecvType].push_back(parts.back().header);
  }
  // Items with oneself are copied locally if both halves are there and agree.
  const auto same = [](const Header& a, const Header& b) { return a.count == b.count && a.dtype == b.dtype; };
  if (!std::equal(self[0].begin(), self[0].end(), self[1].begin(), self[1].end(), same)) {
    return hccl_refuse(HCCL_E_PARA, "HcclBatchSendRecv: what this rank sends itself is not what it receives");
  }
  for (const Part& send : operation.sends) {
    for (const Part& recv : operation.recvs) {
      if (send.peer == recv.peer && overlap(send.memory, recv.memory)) {
        return hccl_refuse(HCCL_E_PARA, "HcclBatchSendRecv does not support in-place operation.");
      }
    }
  }
  return hccl_submit(target, HcclCall::batch, std::move(operation));
}
