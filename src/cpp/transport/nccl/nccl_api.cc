#include "transport/nccl/nccl_api.h"

namespace a2a::nccl {
namespace {

constexpr int kOldest = 21800;

Api load_nccl() {
  Api api{DynamicLibrary::open({"NCCL", "A2A_NCCL_LIBRARY", {"libnccl.so.2", "librccl.so.1"}, {}, "nccl"})};
  const DynamicLibrary& nccl = api.library;
  nccl.require("ncclGetVersion", &api.get_version);
  nccl.require("ncclGetErrorString", &api.get_error_string);
  api.check(api.get_version(&api.version), nullptr, "ncclGetVersion");
  if (api.version < kOldest) {
    throw Error(Code::unsupported,
                nccl.where() + " is version " + api.version_text() + ", and 2.18 is the oldest that a2a works with");
  }
  nccl.require("ncclGetLastError", &api.get_last_error);
  nccl.require("ncclGetUniqueId", &api.get_unique_id);
  nccl.require("ncclCommInitRankConfig", &api.comm_init_rank_config);
  nccl.require("ncclCommFinalize", &api.comm_finalize);
  nccl.require("ncclCommDestroy", &api.comm_destroy);
  nccl.require("ncclCommAbort", &api.comm_abort);
  nccl.find("ncclCommRevoke", &api.comm_revoke);
  nccl.require("ncclCommGetAsyncError", &api.comm_get_async_error);
  nccl.require("ncclCommCount", &api.comm_count);
  nccl.require("ncclCommUserRank", &api.comm_user_rank);
  nccl.require("ncclCommCuDevice", &api.comm_cu_device);
  nccl.require("ncclSend", &api.send);
  nccl.require("ncclRecv", &api.recv);
  nccl.require("ncclGroupStart", &api.group_start);
  nccl.require("ncclGroupEnd", &api.group_end);
  nccl.find("ncclAlltoAll", &api.alltoall);
  nccl.require("ncclAllGather", &api.allgather);
  nccl.require("ncclAllReduce", &api.allreduce);
  nccl.require("ncclReduceScatter", &api.reduce_scatter);
  nccl.require("ncclReduce", &api.reduce);
  nccl.require("ncclBroadcast", &api.broadcast);
  return api;
}

}  // namespace

std::string Api::version_text() const {
  const int major = version / 10000, minor = version / 100 % 100, patch = version % 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

std::string Api::describe(Result result, Comm comm) const {
  std::string text = get_error_string(result);
  text += " (" + std::to_string(static_cast<int>(result)) + ")";
  const char* const last = get_last_error == nullptr ? nullptr : get_last_error(comm);
  if (last != nullptr && *last != '\0') text += ": " + std::string(last);
  return text;
}

void Api::check(Result result, Comm comm, const char* call) const {
  if (result == Result::success || result == Result::in_progress) return;
  throw Error(Code::backend, std::string(call) + " failed: " + describe(result, comm));
}

const Api& api() {
  static const Api& loaded = *new Api(load_nccl());  // after a failure the next call tries again
  return loaded;
}

}  // namespace a2a::nccl
