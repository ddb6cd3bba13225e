// AscendCL: initialisation, devices and contexts.
#include <atomic>

#include "ascend/acl_state.h"
#include "engine/handles.h"

namespace fake {
namespace {

std::atomic<int> state{0};  // 0: before aclInit, 1: between, 2: after aclFinalize

struct Context {
  int device;
};
Handles<Context>& contexts() {
  static auto* const it = new Handles<Context>(0xc0e7'0000'0000);
  return *it;
}
// A device has a context of its own, which aclrtSetDevice makes current.
aclrtContext default_context(int device) {
  static auto* const mutex = new std::mutex;
  static auto* const all = new std::map<int, aclrtContext>;
  const std::lock_guard lock(*mutex);
  auto& context = (*all)[device];
  if (!context) context = contexts().add(std::make_shared<Context>(device));
  return context;
}
thread_local aclrtContext current = nullptr;

bool is_device(int device) { return device >= 0 && device < device_count(); }

}  // namespace

aclError acl_refuse(aclError code, const std::string& text) {
  set_error(text);
  return code;
}

aclError acl_result(const Failure& failure) {
  switch (failure.kind) {
    case Failure::none:
      return ACL_SUCCESS;
    case Failure::not_ready:
      return acl_refuse(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, failure.text);
    case Failure::timeout:
      return acl_refuse(ACL_ERROR_RT_AICPU_TIMEOUT, "EI0002: " + failure.text);
    case Failure::mismatch:
      return acl_refuse(ACL_ERROR_RT_AICPU_EXCEPTION, "EI0005: " + failure.text);
    case Failure::remote:
      return acl_refuse(ACL_ERROR_RT_SUSPECT_REMOTE_ERROR, failure.text);
    case Failure::aborted:
      return acl_refuse(ACL_ERROR_RT_STREAM_ABORT, failure.text);
    default:
      return acl_refuse(ACL_ERROR_RT_AICPU_EXCEPTION, failure.text);
  }
}

aclError acl_ready(bool device) {
  if (state != 1) return acl_refuse(ACL_ERROR_UNINITIALIZE, "aclInit was not called, or aclFinalize was");
  if (!usable()) return ACL_ERROR_UNINITIALIZE;  // a child of fork()
  if (device && current_device() < 0) {
    return acl_refuse(ACL_ERROR_RT_CONTEXT_NULL, "aclrtSetDevice was not called in this thread");
  }
  return ACL_SUCCESS;
}

}  // namespace fake

using namespace fake;

aclError aclInit(const char*) {
  log("aclInit");
  if (!usable()) return ACL_ERROR_RT_FAILURE;
  int before = 0;
  if (state.compare_exchange_strong(before, 1)) return ACL_SUCCESS;
  return acl_refuse(ACL_ERROR_REPEAT_INITIALIZE, "aclInit was called before");
}

aclError aclFinalize() {
  log("aclFinalize");
  int before = 1;
  if (state.compare_exchange_strong(before, 2)) return ACL_SUCCESS;
  return before == 2 ? acl_refuse(ACL_ERROR_REPEAT_FINALIZE, "aclFinalize was called before")
                     : acl_refuse(ACL_ERROR_UNINITIALIZE, "aclInit was not called");
}

const char* aclrtGetSocName() {
  thread_local std::string name;
  name = control("A2A_FAKE_SOC", "Ascend910B1");
  return name.c_str();
}

// Like the real one it hands the text of this thread out once, and null when there is none.
const char* aclGetRecentErrMsg() {
  thread_local std::string text;
  text = error();
  set_error("");
  return text.empty() ? nullptr : text.c_str();
}

aclError aclrtGetDeviceCount(uint32_t* count) {
  A2A_FAKE_READY(false);
  A2A_FAKE_NOT_NULL(count);
  *count = static_cast<uint32_t>(device_count());
  return ACL_SUCCESS;
}

aclError aclrtSetDevice(int32_t deviceId) {
  log("aclrtSetDevice");
  A2A_FAKE_READY(false);
  if (!is_device(deviceId)) return acl_refuse(ACL_ERROR_RT_INVALID_DEVICEID, "no device " + std::to_string(deviceId));
  current = default_context(deviceId);
  set_current_device(deviceId);
  return ACL_SUCCESS;
}

aclError aclrtResetDevice(int32_t deviceId) {
  log("aclrtResetDevice");
  A2A_FAKE_READY();
  if (!is_device(deviceId)) return acl_refuse(ACL_ERROR_RT_INVALID_DEVICEID, "no device " + std::to_string(deviceId));
  if (current_device() == deviceId) {
    current = nullptr;
    set_current_device(-1);
  }
  return acl_result(default_stream(deviceId)->synchronize(std::nullopt));
}

aclError aclrtGetDevice(int32_t* deviceId) {
  A2A_FAKE_READY();
  A2A_FAKE_NOT_NULL(deviceId);
  *deviceId = current_device();
  return ACL_SUCCESS;
}

aclError aclrtCreateContext(aclrtContext* context, int32_t deviceId) {
  A2A_FAKE_READY(false);
  A2A_FAKE_NOT_NULL(context);
  if (!is_device(deviceId)) return acl_refuse(ACL_ERROR_RT_INVALID_DEVICEID, "no device " + std::to_string(deviceId));
  *context = contexts().add(std::make_shared<Context>(deviceId));
  return aclrtSetCurrentContext(*context);
}

aclError aclrtDestroyContext(aclrtContext context) {
  A2A_FAKE_READY(false);
  if (!contexts().remove(context)) return acl_refuse(ACL_ERROR_RT_INVALID_HANDLE, "no such context");
  if (current == context) {
    current = nullptr;
    set_current_device(-1);
  }
  return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext* context) {
  A2A_FAKE_READY();
  A2A_FAKE_NOT_NULL(context);
  *context = current;
  return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  A2A_FAKE_READY(false);
  const auto found = contexts().find(context);
  if (!found) return acl_refuse(ACL_ERROR_RT_INVALID_HANDLE, "no such context");
  current = context;
  set_current_device(found->device);
  return ACL_SUCCESS;
}
