// NCCL: communicators.
#include <algorithm>
#include <thread>

#include "nvidia/nccl_state.h"

namespace fake {
namespace {

Handles<NcclComm>& comms() {
  static auto* const it = new Handles<NcclComm>(0x4cc1'0000'0000);
  return *it;
}

std::string describe(const Header& header) {
  return std::to_string(header.count) + " elements of type " + std::to_string(header.dtype) + " (" +
         std::to_string(header.bytes) + " bytes)" + (header.kind ? " of a collective call" : "");
}

// Bytes alone have to agree, and nothing notices when they do not, unless the environment asks for a diagnosis. A
// failed operation spins on its stream until the communicator is aborted.
Policy policy() {
  Policy made;
  const std::string mismatch = control("A2A_FAKE_MISMATCH", "hang");
  made.rules.bytes_only = true;
  made.rules.on_mismatch = mismatch == "diagnose"   ? OnMismatch::diagnose
                           : mismatch == "truncate" ? OnMismatch::truncate
                                                    : OnMismatch::hang;
  made.rules.describe = describe;
  made.stream_fails = false;
  // NCCL itself waits for ever, for a peer that waits for this rank, too.
  if (const double seconds = control_number("A2A_FAKE_EXEC_TIMEOUT", 0); seconds > 0) made.limit_seconds = seconds;
  return made;
}

ncclResult_t code_of(const Failure& failure) {
  switch (failure.kind) {
    case Failure::none:
      return ncclSuccess;
    case Failure::remote:
      return ncclRemoteError;
    case Failure::timeout:
      return ncclSystemError;
    case Failure::mismatch:
    case Failure::misuse:
      return ncclInvalidUsage;
    default:
      return ncclInternalError;
  }
}

// What each rank tells all others when they meet: its version, its device, and which host it thinks it is on.
ncclResult_t compare(const NcclComm& comm, Mesh& mesh) {
  const std::string version = std::to_string(nccl_version());
  const std::string device = std::to_string(comm.device) + "@" + control("NCCL_HOSTID", "");
  std::vector<std::string> all;
  const Failure failure = mesh.gather("init", version + " " + device, [&] { return comm.aborting.load(); }, all);
  if (failure) return nccl_result(failure);
  const bool may_share = nccl_version() >= 23003 && control("NCCL_MULTI_RANK_GPU_ENABLE", "0") == "1";
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string theirs = all[rank].substr(0, all[rank].find(' '));
    if (theirs != version) {
      return nccl_refuse(ncclInvalidUsage, "Mismatched NCCL version detected : rank " + std::to_string(rank) +
                                               " version " + theirs + " rank " + std::to_string(comm.rank) +
                                               " version " + version);
    }
    for (size_t other = 0; other < rank && !may_share; ++other) {
      if (all[other] != all[rank]) continue;
      if (nccl_version() >= 23003) {
        return nccl_refuse(ncclInvalidUsage,
                           "Multiple Ranks are using the same GPU/Partition. Set "
                           "NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.");
      }
      return nccl_refuse(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(other) + " and rank " +
                                               std::to_string(rank) + " both on CUDA device " + device);
    }
  }
  return ncclSuccess;
}

ncclResult_t meet(NcclComm& comm) {
  std::shared_ptr<Mesh> mesh;
  const double seconds = control_number("A2A_FAKE_CONNECT_TIMEOUT", 120);
  const auto stop = [&] { return comm.aborting.load(); };
  if (const Failure failure = Mesh::connect(comm.name, comm.rank, comm.size, seconds, stop, mesh)) {
    return nccl_result(failure);
  }
  const auto links = std::make_shared<Communicator>(mesh, comm.device, policy());
  {
    const std::lock_guard lock(comm.mutex);
    comm.links = links;
  }
  const ncclResult_t result = compare(comm, *mesh);
  if (result) links->end(false);
  return result;
}

// Finalising, destroying and aborting wait for the graphs that the communicator is part of, for ever if need be.
void await_graphs(const NcclComm& comm) {
  while (comm.in_a_graph()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// The programs that forget a communicator are told in the log.
void report_leaks() {
  static const int once = std::atexit([] {
    if (comms().size() > 0) log_line("leaked communicators: " + std::to_string(comms().size()));
  });
  (void)once;
}

}  // namespace

ncclResult_t nccl_refuse(ncclResult_t code, const std::string& text) {
  set_error(text);
  return code;
}

ncclResult_t nccl_result(const Failure& failure) {
  return failure ? nccl_refuse(code_of(failure), failure.text) : ncclSuccess;
}

ncclResult_t nccl_find(ncclComm_t handle, std::shared_ptr<NcclComm>& comm) {
  A2A_FAKE_ARGUMENT(handle != nullptr);
  if (!usable()) return ncclSystemError;
  comm = comms().find(handle);
  if (!comm) return nccl_refuse(ncclInvalidArgument, "no such communicator; was it destroyed or aborted?");
  const std::lock_guard lock(comm->mutex);
  if (comm->state == ncclInProgress) {
    return nccl_refuse(ncclInvalidArgument,
                       "Attempt to use communicator before the previous operation returned ncclSuccess");
  }
  return comm->state ? nccl_refuse(comm->state, comm->text) : ncclSuccess;
}

ncclResult_t nccl_find_here(ncclComm_t handle, std::shared_ptr<NcclComm>& comm) {
  if (const ncclResult_t wrong = nccl_find(handle, comm)) return wrong;
  if (current_device() < 0) return nccl_refuse(ncclUnhandledCudaError, "no CUDA context is current");
  if (current_device() == comm->device) return ncclSuccess;
  return nccl_refuse(ncclInvalidUsage, "the communicator is on device " + std::to_string(comm->device) +
                                           ", and device " + std::to_string(current_device()) + " is current");
}

ncclResult_t nccl_do(const std::shared_ptr<NcclComm>& comm, NcclJob job) {
  const auto finish = [](NcclComm& of, ncclResult_t result) {
    const std::lock_guard lock(of.mutex);
    of.state = result;
    of.text = error();
  };
  if (comm->blocking) {
    const ncclResult_t result = job();
    if (result) finish(*comm, result);
    return result;
  }
  {
    const std::lock_guard lock(comm->mutex);
    comm->state = ncclInProgress;
  }
  std::thread([comm, job = std::move(job), device = current_device(), finish] {
    set_current_device(device);
    delay();
    finish(*comm, job());
  }).detach();
  return ncclInProgress;
}

ncclResult_t nccl_join(ncclComm_t* handle, int size, const std::string& name, int rank, const ncclConfig_t* config) {
  if (current_device() < 0) return nccl_refuse(ncclUnhandledCudaError, "no CUDA context is current");
  bool blocking = true;
  if (const ncclResult_t wrong = nccl_config(config, blocking)) return wrong;
  const auto comm = std::make_shared<NcclComm>(rank, size, current_device(), name, blocking);
  report_leaks();
  *handle = static_cast<ncclComm_t>(comms().add(comm));
  log("ncclCommInit", rank);
  const auto job = [comm, made = *handle] {
    const ncclResult_t result = meet(*comm);
    if (result && comm->blocking) comms().remove(made);
    return result;
  };
  if (nccl_in_group(comm, job)) return ncclSuccess;
  const ncclResult_t result = nccl_do(comm, job);
  if (result && result != ncclInProgress) *handle = nullptr;
  return result;
}

}  // namespace fake

using namespace fake;

ncclResult_t ncclGetVersion(int* version) {
  A2A_FAKE_ARGUMENT(version != nullptr);
  if (!allowed()) return ncclSystemError;
  *version = nccl_version();
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  const char* const texts[] = {"no error",
                               "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                               "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                               "internal error - please report this issue to the NCCL developers",
                               "invalid argument (run with NCCL_DEBUG=WARN for details)",
                               "invalid usage (run with NCCL_DEBUG=WARN for details)",
                               "remote process exited or there was a network error",
                               "NCCL operation in progress",
                               "timeout"};
  return result >= 0 && result <= ncclTimeout ? texts[result] : "unknown result code";
}

// That of the process, whatever the communicator and the thread.
const char* ncclGetLastError(ncclComm_t) {
  thread_local std::string text;
  text = latest_error();
  return text.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId) {
  A2A_FAKE_ARGUMENT(uniqueId != nullptr);
  if (!usable()) return ncclSystemError;
  make_identity(uniqueId->internal, sizeof uniqueId->internal);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  return ncclCommInitRankConfig(comm, nranks, commId, rank, nullptr);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t* config) {
  A2A_FAKE_ARGUMENT(comm != nullptr);
  if (!usable()) return ncclSystemError;
  if (nranks < 1 || rank < 0 || rank >= nranks) {
    return nccl_refuse(ncclInvalidArgument,
                       "Invalid rank requested : " + std::to_string(rank) + "/" + std::to_string(nranks));
  }
  std::string name;
  if (!identity_name(commId.internal, sizeof commId.internal, name)) {
    return nccl_refuse(ncclInvalidArgument, "the unique id is not what ncclGetUniqueId gave");
  }
  return nccl_join(comm, nranks, name, rank, config);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  A2A_FAKE_COMM(nccl_find_here);
  A2A_FAKE_ARGUMENT(newcomm != nullptr && color >= NCCL_SPLIT_NOCOLOR);
  const std::string topic = "split" + std::to_string(++found->children);
  std::vector<std::string> all;
  const auto stop = [&] { return found->aborting.load(); };
  const std::string mine = std::to_string(color) + " " + std::to_string(key);
  if (const Failure failure = found->links->mesh->gather(topic, mine, stop, all)) return nccl_result(failure);
  *newcomm = nullptr;
  if (color == NCCL_SPLIT_NOCOLOR) return ncclSuccess;
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int rank = 0; rank < found->size; ++rank) {
    const std::string& said = all[static_cast<size_t>(rank)];
    if (std::stoi(said) == color) members.emplace_back(std::stoi(said.substr(said.find(' '))), rank);
  }
  std::ranges::sort(members);
  const auto me = std::ranges::find(members, std::pair(key, found->rank));
  const std::string name = found->name + "-" + topic + "-" + std::to_string(color);
  return nccl_join(newcomm, static_cast<int>(members.size()), name, static_cast<int>(me - members.begin()), config);
}

// Finalising and destroying wait for all operations, and destroying for all ranks.
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  A2A_FAKE_COMM(nccl_find_here);
  if (found->closing.exchange(true)) return nccl_refuse(ncclInvalidArgument, "the communicator is finalised already");
  log("ncclCommFinalize", found->rank);
  return nccl_do(found, [found] {
    found->links->drain();
    await_graphs(*found);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  A2A_FAKE_COMM(nccl_find);
  found->closing = true;
  log("ncclCommDestroy", found->rank);
  found->links->drain();
  await_graphs(*found);
  found->links->mesh->leave();
  found->links->mesh->await_leaving([&] { return found->aborting.load(); });
  comms().remove(comm);
  found->links->end(false);
  return ncclSuccess;
}

// May be called while another thread is in a call on the communicator, which then ends.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  A2A_FAKE_ARGUMENT(comm != nullptr);
  if (!usable()) return ncclSystemError;
  const auto found = comms().remove(comm);
  if (!found) return nccl_refuse(ncclInvalidArgument, "no such communicator; was it destroyed or aborted?");
  log("ncclCommAbort", found->rank);
  found->aborting = true;
  {
    const std::lock_guard lock(found->mutex);
    if (found->links) found->links->end(false);
  }
  await_graphs(*found);
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  A2A_FAKE_ARGUMENT(comm != nullptr && asyncError != nullptr);
  if (!usable()) return ncclSystemError;
  const auto found = comms().find(comm);
  if (!found) return nccl_refuse(ncclInvalidArgument, "no such communicator; was it destroyed or aborted?");
  const std::lock_guard lock(found->mutex);
  *asyncError = found->state;
  if (found->state && found->state != ncclInProgress) set_error(found->text);
  if (found->state == ncclSuccess && found->links) *asyncError = nccl_result(found->links->failure());
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  A2A_FAKE_COMM(nccl_find);
  A2A_FAKE_ARGUMENT(count != nullptr);
  *count = found->size;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  A2A_FAKE_COMM(nccl_find);
  A2A_FAKE_ARGUMENT(device != nullptr);
  *device = found->device;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  A2A_FAKE_COMM(nccl_find);
  A2A_FAKE_ARGUMENT(rank != nullptr);
  *rank = found->rank;
  return ncclSuccess;
}
