#include "transport/hccl/hccl_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

namespace a2a::hccl {
namespace {

constexpr int kRepeatedInit = 100002;  // ACL_ERROR_REPEAT_INITIALIZE: a framework has initialised it

std::vector<std::string> install_directories() {
  std::vector<std::string> result;
  if (const char* const home = std::getenv("ASCEND_HOME_PATH")) result.push_back(std::string(home) + "/lib64");
  result.push_back("/usr/local/Ascend/cann/lib64");
  result.push_back("/usr/local/Ascend/ascend-toolkit/latest/lib64");
  return result;
}

// HCCL's symbols. In newer versions the communicators have a library of their own, on which libhccl.so usually depends.
class Hccl {
 public:
  explicit Hccl(const DynamicLibrary& hccl) : hccl_(hccl) {
    if (hccl.find("HcclCommDestroy") != nullptr) return;
    try {
      const auto directory = std::filesystem::path(path_of(hccl.find("HcclAlltoAllV"))).parent_path().string();
      hcomm_ = DynamicLibrary::open({"HCCL's communicators", "A2A_HCOMM_LIBRARY", {"libhcomm.so"}, {directory}});
    } catch (const Error&) {
      // require() then names the missing symbols.
    }
  }

  template <class Function>
  void find(const char* symbol, Function** function) const {
    hccl_.find(symbol, function);
    if (*function == nullptr && hcomm_) hcomm_->find(symbol, function);
  }
  template <class Function>
  void require(const char* symbol, Function** function) const {
    find(symbol, function);
    if (*function == nullptr) hccl_.missing(symbol);
  }

 private:
  static std::string path_of(void* address) {
    Dl_info info{};
    return address != nullptr && dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
  }

  const DynamicLibrary& hccl_;
  std::optional<DynamicLibrary> hcomm_;
};

void load_hccl(Api& api) {
  const Hccl hccl(api.hccl);
  hccl.require("HcclGetRootInfo", &api.get_root_info);
  hccl.require("HcclCommInitRootInfo", &api.comm_init_root_info);
  hccl.find("HcclCommInitClusterInfo", &api.comm_init_cluster_info);
  hccl.require("HcclCommDestroy", &api.comm_destroy);
  hccl.require("HcclGetRankSize", &api.get_rank_size);
  hccl.require("HcclGetRankId", &api.get_rank_id);
  hccl.find("HcclGetCommAsyncError", &api.get_comm_async_error);
  hccl.require("HcclAlltoAllV", &api.alltoallv);
  hccl.require("HcclAlltoAll", &api.alltoall);
  hccl.require("HcclAllGather", &api.allgather);
  hccl.find("HcclBatchSendRecv", &api.batch_send_recv);
  hccl.require("HcclAllReduce", &api.allreduce);
  hccl.require("HcclReduceScatter", &api.reduce_scatter);
  hccl.require("HcclReduce", &api.reduce);
  hccl.require("HcclBroadcast", &api.broadcast);
  hccl.require("HcclScatter", &api.scatter);
}

void load_acl(Api& api) {
  const DynamicLibrary& acl = api.acl;
  acl.require("aclInit", &api.init);
  acl.require("aclrtSetDevice", &api.set_device);
  acl.require("aclrtGetCurrentContext", &api.get_current_context);
  acl.require("aclrtSetCurrentContext", &api.set_current_context);
  acl.require("aclrtGetDeviceCount", &api.get_device_count);
  acl.require("aclrtMalloc", &api.malloc);
  acl.require("aclrtFree", &api.free);
  acl.require("aclrtCreateStream", &api.create_stream);
  acl.require("aclrtDestroyStream", &api.destroy_stream);
  acl.find("aclrtDestroyStreamForce", &api.destroy_stream_force);
  acl.find("aclrtSynchronizeStreamWithTimeout", &api.synchronize_stream_with_timeout);
  acl.find("aclrtStreamQuery", &api.stream_query);
  acl.find("aclrtStreamAbort", &api.stream_abort);
  acl.require("aclrtCreateEventWithFlag", &api.create_event_with_flag);
  acl.require("aclrtDestroyEvent", &api.destroy_event);
  acl.require("aclrtRecordEvent", &api.record_event);
  acl.require("aclrtQueryEventStatus", &api.query_event_status);
  acl.require("aclrtStreamWaitEvent", &api.stream_wait_event);
  acl.require("aclrtPointerGetAttributes", &api.pointer_get_attributes);
  acl.find("aclGetRecentErrMsg", &api.recent_error);
}

Api load() {
  Api api{DynamicLibrary::open({"HCCL", "A2A_HCCL_LIBRARY", {"libhccl.so"}, install_directories()}),
          DynamicLibrary::open({"AscendCL", "A2A_ASCENDCL_LIBRARY", {"libascendcl.so"}, install_directories()})};
  load_hccl(api);
  load_acl(api);
  if (const int error = api.init(nullptr); error != kRepeatedInit) api.check_acl(error, "aclInit");
  return api;
}

const char* name_of(Result result) {
  static constexpr const char* kNames[] = {"HCCL_SUCCESS",
                                           "HCCL_E_PARA",
                                           "HCCL_E_PTR",
                                           "HCCL_E_MEMORY",
                                           "HCCL_E_INTERNAL",
                                           "HCCL_E_NOT_SUPPORT",
                                           "HCCL_E_NOT_FOUND",
                                           "HCCL_E_UNAVAIL",
                                           "HCCL_E_SYSCALL",
                                           "HCCL_E_TIMEOUT",
                                           "HCCL_E_OPEN_FILE_FAILURE",
                                           "HCCL_E_TCP_CONNECT",
                                           "HCCL_E_ROCE_CONNECT",
                                           "HCCL_E_TCP_TRANSFER",
                                           "HCCL_E_ROCE_TRANSFER",
                                           "HCCL_E_RUNTIME",
                                           "HCCL_E_DRV",
                                           "HCCL_E_PROFILING",
                                           "HCCL_E_CCE",
                                           "HCCL_E_NETWORK",
                                           "HCCL_E_AGAIN",
                                           "HCCL_E_REMOTE",
                                           "HCCL_E_SUSPENDING",
                                           "HCCL_E_OPRETRY_FAIL",
                                           "HCCL_E_OOM"};
  const auto index = static_cast<size_t>(result);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

// Returns the library's text for this thread's latest error.
std::string words(const char* (*recent_error)()) {
  const char* const text = recent_error == nullptr ? nullptr : recent_error();
  return text == nullptr || *text == '\0' ? "" : ": " + std::string(text);
}

}  // namespace

std::string Api::describe(Result result) const {
  return "error " + std::to_string(static_cast<int>(result)) + " (" + name_of(result) + ")" + words(recent_error);
}

std::string Api::describe_acl(int error) const { return "error " + std::to_string(error) + words(recent_error); }

void Api::check(Result result, const char* call) const {
  if (result == Result::success) return;
  throw Error(result == Result::timeout ? Code::timeout : Code::backend,
              std::string(call) + " failed with " + describe(result));
}

void Api::check_acl(int error, const char* call) const {
  if (error != 0) throw Error(Code::backend, std::string(call) + " failed with " + describe_acl(error));
}

const Api& api() {
  static const Api& loaded = *new Api(load());  // after a failure the next call tries again
  return loaded;
}

}  // namespace a2a::hccl
