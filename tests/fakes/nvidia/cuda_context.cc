// The CUDA driver: initialisation, devices and contexts.
#include <cstring>
#include <map>

#include "engine/handles.h"
#include "nvidia/cuda_state.h"

namespace fake {
namespace {

std::atomic<bool> initialised{false};

// Each device has one context, alive while somebody retains it.
struct Primary {
  CUcontext context;
  int retained;
};
std::mutex& mutex() {
  static auto* const it = new std::mutex;
  return *it;
}
std::map<int, Primary>& primaries() {
  static auto* const it = new std::map<int, Primary>;
  return *it;
}
// Contexts are numbered, so that a released one is not mistaken for its successor.
std::map<CUcontext, int>& device_of() {
  static auto* const it = new std::map<CUcontext, int>;
  return *it;
}

thread_local std::vector<CUcontext> stack;

// The device of a context that is alive, or -1.
int find_device(CUcontext context) {
  const std::lock_guard lock(mutex());
  const auto found = device_of().find(context);
  return found == device_of().end() ? -1 : found->second;
}

void update_current() { set_current_device(stack.empty() ? -1 : find_device(stack.back())); }

bool is_device(int device) { return device >= 0 && device < device_count(); }

}  // namespace

CUcontext cuda_context(int device) {
  const std::lock_guard lock(mutex());
  const auto found = primaries().find(device);
  return found == primaries().end() ? nullptr : found->second.context;
}

CUresult cuda_refuse(CUresult code, const std::string& text) {
  set_error(text);
  return code;
}

CUresult cuda_result(const Failure& failure) {
  if (!failure) return CUDA_SUCCESS;
  const CUresult code = failure.kind == Failure::not_ready ? CUDA_ERROR_NOT_READY : CUDA_ERROR_ILLEGAL_ADDRESS;
  return cuda_refuse(code, failure.text);
}

CUresult cuda_ready(bool context) {
  if (!initialised || !usable()) return cuda_refuse(CUDA_ERROR_NOT_INITIALIZED, "cuInit was not called here");
  if (!context) return CUDA_SUCCESS;
  update_current();
  if (stack.empty() || !stack.back()) return cuda_refuse(CUDA_ERROR_INVALID_CONTEXT, "no context is current");
  return current_device() >= 0 ? CUDA_SUCCESS
                               : cuda_refuse(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the current context was released");
}

}  // namespace fake

using namespace fake;

CUresult cuInit(unsigned int Flags) {
  log("cuInit");
  A2A_FAKE_VALUE(Flags == 0);
  if (!usable()) {
    return allowed() ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_NO_DEVICE;
  }
  initialised = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* driverVersion) {
  A2A_FAKE_VALUE(driverVersion);
  *driverVersion = static_cast<int>(control_number("A2A_FAKE_CUDA_VERSION", 13000));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  A2A_FAKE_READY(false);
  A2A_FAKE_VALUE(count);
  *count = device_count();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  A2A_FAKE_READY(false);
  A2A_FAKE_VALUE(device);
  if (!is_device(ordinal)) return cuda_refuse(CUDA_ERROR_INVALID_DEVICE, "no such device");
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int len, CUdevice dev) {
  A2A_FAKE_READY(false);
  A2A_FAKE_VALUE(name && len > 0);
  if (!is_device(dev)) return cuda_refuse(CUDA_ERROR_INVALID_DEVICE, "no such device");
  snprintf(name, static_cast<size_t>(len), "a2a test double");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
  A2A_FAKE_READY(false);
  A2A_FAKE_VALUE(pi && attrib == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);  // no other is asked for
  if (!is_device(dev)) return cuda_refuse(CUDA_ERROR_INVALID_DEVICE, "no such device");
  *pi = static_cast<int>(control_number("A2A_FAKE_CAPABILITY", 9));
  return CUDA_SUCCESS;
}

// The same in all processes of this machine.
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
  A2A_FAKE_READY(false);
  A2A_FAKE_VALUE(uuid);
  if (!is_device(dev)) return cuda_refuse(CUDA_ERROR_INVALID_DEVICE, "no such device");
  *uuid = {"a2a test double"};
  uuid->bytes[15] = static_cast<char>(dev);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  A2A_FAKE_READY(false);
  A2A_FAKE_VALUE(pctx);
  if (!is_device(dev)) return cuda_refuse(CUDA_ERROR_INVALID_DEVICE, "no such device");
  static uintptr_t next = 0xc0c0'0000'0000;
  const std::lock_guard lock(mutex());
  Primary& primary = primaries()[dev];
  if (primary.retained++ == 0) {
    primary.context = reinterpret_cast<CUcontext>(next += 64);
    device_of()[primary.context] = dev;
  }
  *pctx = primary.context;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  A2A_FAKE_READY(false);
  const std::lock_guard lock(mutex());
  const auto found = primaries().find(dev);
  if (found == primaries().end() || found->second.retained == 0) {
    return cuda_refuse(CUDA_ERROR_INVALID_CONTEXT, "a primary context is released that nobody retains");
  }
  if (--found->second.retained == 0) device_of().erase(found->second.context);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* pctx) {
  A2A_FAKE_READY(false);
  A2A_FAKE_VALUE(pctx);
  *pctx = stack.empty() ? nullptr : stack.back();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx) {
  A2A_FAKE_READY(false);
  if (ctx && find_device(ctx) < 0) return cuda_refuse(CUDA_ERROR_INVALID_CONTEXT, "no such context");
  if (!stack.empty()) stack.pop_back();
  if (ctx) stack.push_back(ctx);
  update_current();
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
  A2A_FAKE_READY(false);
  if (find_device(ctx) < 0) return cuda_refuse(CUDA_ERROR_INVALID_CONTEXT, "no such context");
  stack.push_back(ctx);
  update_current();
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* pctx) {
  A2A_FAKE_READY(false);
  if (stack.empty()) return cuda_refuse(CUDA_ERROR_INVALID_CONTEXT, "no context is current");
  if (pctx) *pctx = stack.back();
  stack.pop_back();
  update_current();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  A2A_FAKE_READY();
  A2A_FAKE_VALUE(device);
  *device = current_device();
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  A2A_FAKE_READY();
  A2A_FAKE_SAFE();
  return cuda_result(default_stream(current_device())->synchronize(std::nullopt));
}
