// HCCL: communicators (what newer releases have in libhcomm.so).
#include <cstring>
#include <thread>

#include "ascend/hccl_state.h"
#include "ascend/rank_table.h"
#include "engine/handles.h"

namespace fake {
namespace {

struct HcclGroup {
  std::string name;
  std::shared_ptr<Communicator> comm;
};

Handles<HcclGroup>& comms() {
  static auto* const it = new Handles<HcclGroup>(0xcc10'0000'0000);
  return *it;
}

HcclResult result_of(const Failure& failure) {
  switch (failure.kind) {
    case Failure::none:
      return HCCL_SUCCESS;
    case Failure::timeout:
      return hccl_refuse(HCCL_E_TIMEOUT, failure.text);
    case Failure::remote:
      return hccl_refuse(HCCL_E_REMOTE, failure.text);
    case Failure::aborted:
      return hccl_refuse(HCCL_E_SUSPENDING, failure.text);
    case Failure::injected:
      return hccl_refuse(HCCL_E_INTERNAL, failure.text);
    default:
      return hccl_refuse(HCCL_E_PARA, failure.text);
  }
}

const char* const kCalls[] = {"HcclAlltoAllV",
                              "HcclAlltoAll",
                              "HcclAlltoAllVC",
                              "HcclAllGather",
                              "HcclAllGatherV",
                              "HcclBarrier",
                              "HcclSend/HcclRecv",
                              "HcclBatchSendRecv",
                              "HcclBroadcast",
                              "HcclScatter",
                              "HcclAllReduce of sum",
                              "HcclAllReduce of prod",
                              "HcclAllReduce of max",
                              "HcclAllReduce of min",
                              "HcclReduceScatter of sum",
                              "HcclReduceScatter of prod",
                              "HcclReduceScatter of max",
                              "HcclReduceScatter of min",
                              "HcclReduce of sum",
                              "HcclReduce of prod",
                              "HcclReduce of max",
                              "HcclReduce of min"};
static_assert(std::size(kCalls) == static_cast<size_t>(HcclCall::end));

std::string describe(const Header& header) {
  std::string text = kCalls[header.kind];
  if (header.number) text += " #" + std::to_string(header.number);
  return text + " of " + std::to_string(header.count) + " elements of type " + std::to_string(header.dtype) + " (" +
         std::to_string(header.bytes) + " bytes)";
}

Policy policy() {
  Policy made;
  made.rules.on_mismatch = control("A2A_FAKE_MISMATCH", "diagnose") == "hang" ? OnMismatch::hang : OnMismatch::diagnose;
  made.rules.describe = describe;
  const double seconds = control_number("A2A_FAKE_EXEC_TIMEOUT", 1836);
  if (seconds > 0) made.limit_seconds = seconds;
  return made;
}

HcclResult ready() {
  if (!usable()) return HCCL_E_UNAVAIL;
  return current_device() >= 0 ? HCCL_SUCCESS
                               : hccl_refuse(HCCL_E_RUNTIME, "aclrtSetDevice was not called in this thread");
}

// Waits until all ranks have come.
HcclResult join(const std::string& name, uint32_t ranks, uint32_t rank, HcclComm* comm) {
  if (const HcclResult wrong = ready()) return wrong;
  if (ranks == 0 || rank >= ranks) {
    return hccl_refuse(HCCL_E_PARA, "rank " + std::to_string(rank) + " of " + std::to_string(ranks));
  }
  std::shared_ptr<Mesh> mesh;
  const double seconds = control_number("A2A_FAKE_CONNECT_TIMEOUT", 120);
  const Failure failure =
      Mesh::connect(name, static_cast<int>(rank), static_cast<int>(ranks), seconds, [] { return false; }, mesh);
  if (failure.kind == Failure::timeout) return hccl_refuse(HCCL_E_TIMEOUT, "EI0015: " + failure.text);
  if (failure) return result_of(failure);
  *comm =
      comms().add(std::make_shared<HcclGroup>(name, std::make_shared<Communicator>(mesh, current_device(), policy())));
  log("HcclCommInit", static_cast<int>(rank));
  return HCCL_SUCCESS;
}

// The struct grows at its end without a new version, so any size that fits the one known here is good.
HcclResult check_config(const HcclCommConfig* config) {
  A2A_FAKE_PTR(config);
  struct {
    size_t size;
    uint32_t magic, version;
  } info;
  std::memcpy(&info, config->reserved, sizeof info);
  const bool good = info.magic == HCCL_COMM_CONFIG_MAGIC_WORD && info.version >= 1 && info.size >= 32 &&
                    info.size <= sizeof(HcclCommConfig);
  return good ? HCCL_SUCCESS : hccl_refuse(HCCL_E_PARA, "HcclCommConfig was not made by HcclCommConfigInit");
}

// In a child of fork() there are none: its links are closed, and their descriptors may be somebody else's.
std::shared_ptr<HcclGroup> find(HcclComm comm) { return usable() ? comms().find(comm) : nullptr; }
HcclResult no_comm() { return hccl_refuse(HCCL_E_PARA, "no such communicator; was it destroyed?"); }

// Messages of HcclSend and HcclRecv between HcclGroupStart and HcclGroupEnd of this thread.
struct Waiting {
  HcclTarget target;
  Operation operation;
};
thread_local int group_depth = 0;
thread_local std::vector<Waiting> group;

}  // namespace

HcclResult hccl_refuse(HcclResult code, const std::string& text) {
  set_error(text);
  return code;
}

HcclResult hccl_target(HcclComm comm, aclrtStream stream, HcclTarget& target) {
  A2A_FAKE_PTR(comm);
  A2A_FAKE_PTR(stream);
  if (const HcclResult wrong = ready()) return wrong;
  const auto found = find(comm);
  if (!found) return no_comm();
  target = {found->comm, streams().find(stream), stream};
  if (!target.stream) return hccl_refuse(HCCL_E_PARA, "no such stream; was it destroyed?");
  if (target.comm->device != target.stream->device || target.comm->device != current_device()) {
    return hccl_refuse(HCCL_E_PARA, "the communicator is on device " + std::to_string(target.comm->device) +
                                        ", the stream on device " + std::to_string(target.stream->device) +
                                        ", this thread on device " + std::to_string(current_device()));
  }
  return HCCL_SUCCESS;
}

HcclResult hccl_submit(const HcclTarget& target, HcclCall call, Operation operation) {
  uint64_t bytes = 0;
  int dtype = -1;
  std::vector<int> peers;
  for (auto* parts : {&operation.sends, &operation.recvs}) {
    for (Part& part : *parts) {
      part.header.kind = static_cast<uint32_t>(call);
      if (parts == &operation.sends) bytes += part.memory.bytes;
      dtype = part.header.dtype;
      peers.push_back(part.peer);
    }
  }
  log(operation.name, target.comm->rank, target.handle, bytes, dtype, peers);
  if (call == HcclCall::send_recv && group_depth > 0) {
    for (Waiting& other : group) {
      if (other.target.comm != target.comm || other.target.stream != target.stream) continue;
      for (Part& part : operation.sends) other.operation.sends.push_back(part);
      for (Part& part : operation.recvs) other.operation.recvs.push_back(part);
      return HCCL_SUCCESS;
    }
    group.push_back({target, std::move(operation)});
    return HCCL_SUCCESS;
  }
  const auto number = target.comm->count();
  if (!number) return HCCL_E_INTERNAL;
  target.comm->enqueue(*target.stream, std::move(operation), *number);
  return HCCL_SUCCESS;
}

size_t hccl_element_bytes(HcclDataType type) {
  // The 8-bit floating-point types exist on one product line only.
  const bool has_fp8 = control("A2A_FAKE_SOC", "").starts_with("Ascend950");
  switch (type) {
    case HCCL_DATA_TYPE_INT8:
    case HCCL_DATA_TYPE_UINT8:
      return 1;
    case HCCL_DATA_TYPE_HIF8:
    case HCCL_DATA_TYPE_FP8E4M3:
    case HCCL_DATA_TYPE_FP8E5M2:
    case HCCL_DATA_TYPE_FP8E8M0:
      return has_fp8 ? 1 : 0;
    case HCCL_DATA_TYPE_INT16:
    case HCCL_DATA_TYPE_UINT16:
    case HCCL_DATA_TYPE_FP16:
    case HCCL_DATA_TYPE_BFP16:
      return 2;
    case HCCL_DATA_TYPE_INT32:
    case HCCL_DATA_TYPE_UINT32:
    case HCCL_DATA_TYPE_FP32:
      return 4;
    case HCCL_DATA_TYPE_INT64:
    case HCCL_DATA_TYPE_UINT64:
    case HCCL_DATA_TYPE_FP64:
      return 8;
    default:  // INT128 among them
      return 0;
  }
}

}  // namespace fake

using namespace fake;

HcclResult HcclGetRootInfo(HcclRootInfo* rootInfo) {
  log("HcclGetRootInfo");
  A2A_FAKE_PTR(rootInfo);
  if (const HcclResult wrong = ready()) return wrong;
  make_identity(rootInfo->internal, sizeof rootInfo->internal);
  return HCCL_SUCCESS;
}

HcclResult HcclCommInitRootInfo(uint32_t nRanks, const HcclRootInfo* rootInfo, uint32_t rank, HcclComm* comm) {
  A2A_FAKE_PTR(rootInfo);
  A2A_FAKE_PTR(comm);
  std::string name;
  if (!identity_name(rootInfo->internal, sizeof rootInfo->internal, name)) {
    return hccl_refuse(HCCL_E_PARA, "the root info is not, in all its 4108 bytes, what HcclGetRootInfo gave");
  }
  return join(name, nRanks, rank, comm);
}

HcclResult HcclCommInitClusterInfo(const char* clusterInfo, uint32_t rank, HcclComm* comm) {
  A2A_FAKE_PTR(clusterInfo);
  A2A_FAKE_PTR(comm);
  std::string name, why;
  uint32_t ranks = 0;
  if (!read_rank_table(clusterInfo, rank, ranks, name, why)) return hccl_refuse(HCCL_E_PARA, why);
  return join(name, ranks, rank, comm);
}

HcclResult HcclCommInitAll(uint32_t ndev, int32_t* devices, HcclComm* comms) {
  A2A_FAKE_PTR(devices);
  A2A_FAKE_PTR(comms);
  if (!usable()) return HCCL_E_UNAVAIL;
  HcclRootInfo root;
  make_identity(root.internal, sizeof root.internal);
  std::vector<HcclResult> results(ndev);
  {
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < ndev; ++rank) {
      threads.emplace_back([&, rank] {
        set_current_device(devices[rank]);
        results[rank] = HcclCommInitRootInfo(ndev, &root, rank, &comms[rank]);
      });
    }
  }
  for (const HcclResult result : results) {
    if (result) return result;
  }
  return HCCL_SUCCESS;
}

HcclResult HcclCommDestroy(HcclComm comm) {
  A2A_FAKE_PTR(comm);
  const auto found = usable() ? comms().remove(comm) : nullptr;
  if (!found) return no_comm();
  log("HcclCommDestroy", found->comm->rank);
  found->comm->end(true);
  return HCCL_SUCCESS;
}

HcclResult HcclGetRankSize(HcclComm comm, uint32_t* rankSize) {
  A2A_FAKE_PTR(comm);
  A2A_FAKE_PTR(rankSize);
  const auto found = find(comm);
  if (!found) return no_comm();
  *rankSize = static_cast<uint32_t>(found->comm->size);
  return HCCL_SUCCESS;
}

HcclResult HcclGetRankId(HcclComm comm, uint32_t* rank) {
  A2A_FAKE_PTR(comm);
  A2A_FAKE_PTR(rank);
  const auto found = find(comm);
  if (!found) return no_comm();
  *rank = static_cast<uint32_t>(found->comm->rank);
  return HCCL_SUCCESS;
}

HcclResult HcclGetCommAsyncError(HcclComm comm, HcclResult* asyncError) {
  A2A_FAKE_PTR(comm);
  A2A_FAKE_PTR(asyncError);
  const auto found = find(comm);
  if (!found) return no_comm();
  *asyncError = result_of(found->comm->failure());
  return HCCL_SUCCESS;
}

HcclResult HcclBarrier(HcclComm comm, aclrtStream stream) {
  HcclTarget target;
  if (const HcclResult wrong = hccl_target(comm, stream, target)) return wrong;
  Operation barrier{"HcclBarrier", {}, {}, true, {}};
  for (int peer = 0; peer < target.comm->size; ++peer) {
    barrier.sends.push_back({peer, {}, {}});
    barrier.recvs.push_back({peer, {}, {}});
  }
  return hccl_submit(target, HcclCall::barrier, std::move(barrier));
}

HcclResult HcclCommInitRootInfoConfig(uint32_t nRanks, const HcclRootInfo* rootInfo, uint32_t rank,
                                      const HcclCommConfig* config, HcclComm* comm) {
  if (const HcclResult wrong = check_config(config)) return wrong;
  return HcclCommInitRootInfo(nRanks, rootInfo, rank, comm);
}

HcclResult HcclCommInitClusterInfoConfig(const char* clusterInfo, uint32_t rank, HcclCommConfig* config,
                                         HcclComm* comm) {
  if (const HcclResult wrong = check_config(config)) return wrong;
  return HcclCommInitClusterInfo(clusterInfo, rank, comm);
}

// Only members call it, each with its rank in the new communicator; rankIds are ranks of the old one.
HcclResult HcclCreateSubCommConfig(HcclComm* comm, uint32_t rankNum, uint32_t* rankIds, uint64_t subCommId,
                                   uint32_t subCommRankId, HcclCommConfig* config, HcclComm* subComm) {
  A2A_FAKE_PTR(comm);
  A2A_FAKE_PTR(rankIds);
  A2A_FAKE_PTR(subComm);
  if (const HcclResult wrong = check_config(config)) return wrong;
  const auto parent = find(*comm);
  if (!parent) return no_comm();
  if (subCommRankId >= rankNum || rankIds[subCommRankId] != static_cast<uint32_t>(parent->comm->rank)) {
    return hccl_refuse(HCCL_E_PARA, "rankIds[subCommRankId] is not this rank");
  }
  char name[32];
  const uint64_t members = hash(rankIds, rankNum * sizeof *rankIds, hash(parent->name.data(), parent->name.size()));
  snprintf(name, sizeof name, "%016lx", static_cast<unsigned long>(hash(&subCommId, sizeof subCommId, members)));
  return join(name, rankNum, subCommRankId, subComm);
}

HcclResult HcclGetCommName(HcclComm comm, char* commName) {
  A2A_FAKE_PTR(comm);
  A2A_FAKE_PTR(commName);
  const auto found = find(comm);
  if (!found) return no_comm();
  std::memset(commName, 0, 128);
  std::memcpy(commName, found->name.data(), found->name.size());
  return HCCL_SUCCESS;
}

const char* HcclGetErrorString(HcclResult code) {
  switch (code) {
    case HCCL_SUCCESS:
      return "no error";
    case HCCL_E_PARA:
      return "parameter error";
    case HCCL_E_PTR:
      return "empty pointer";
    case HCCL_E_INTERNAL:
      return "internal error";
    case HCCL_E_NOT_SUPPORT:
      return "not support feature";
    case HCCL_E_UNAVAIL:
      return "resource unavailable";
    case HCCL_E_TIMEOUT:
      return "timeout";
    case HCCL_E_RUNTIME:
      return "call runtime api fail";
    case HCCL_E_REMOTE:
      return "remote error";
    case HCCL_E_SUSPENDING:
      return "communicator suspending";
    default:
      return "unknown error";
  }
}

uint32_t HcclGetCommConfigCapability() { return 12; }

HcclResult HcclGroupStart() {
  ++group_depth;
  return HCCL_SUCCESS;
}

HcclResult HcclGroupEnd() {
  if (group_depth == 0) return hccl_refuse(HCCL_E_PARA, "HcclGroupEnd without HcclGroupStart");
  if (--group_depth > 0) return HCCL_SUCCESS;
  auto waiting = std::move(group);
  group.clear();
  for (Waiting& one : waiting) {
    const auto number = one.target.comm->count();
    if (!number) return HCCL_E_INTERNAL;
    one.target.comm->enqueue(*one.target.stream, std::move(one.operation), *number);
  }
  return HCCL_SUCCESS;
}
