#include "transport/nccl/cuda_driver.h"

#include <string>

namespace a2a::nccl {
namespace {

// The names with a suffix belong to the present ABI, the plain ones to an older one.
CudaDriver load_driver() {
  CudaDriver cuda{DynamicLibrary::open({"the CUDA driver", "A2A_CUDA_LIBRARY", {"libcuda.so.1"}})};
  const DynamicLibrary& library = cuda.library;
  library.require("cuInit", &cuda.init);
  library.require("cuGetErrorString", &cuda.get_error_string);
  library.require("cuDeviceGetCount", &cuda.device_get_count);
  library.require("cuDeviceGet", &cuda.device_get);
  library.require("cuDeviceGetAttribute", &cuda.device_get_attribute);
  library.find("cuDeviceGetUuid_v2", &cuda.device_get_uuid);
  library.require("cuDevicePrimaryCtxRetain", &cuda.primary_ctx_retain);
  library.require("cuCtxPushCurrent_v2", &cuda.ctx_push_current);
  library.require("cuCtxPopCurrent_v2", &cuda.ctx_pop_current);
  library.require("cuCtxGetCurrent", &cuda.ctx_get_current);
  library.require("cuCtxGetDevice", &cuda.ctx_get_device);
  library.require("cuPointerGetAttribute", &cuda.pointer_get_attribute);
  library.require("cuMemcpyAsync", &cuda.memcpy_async);
  library.require("cuStreamCreate", &cuda.stream_create);
  library.require("cuStreamDestroy_v2", &cuda.stream_destroy);
  library.require("cuStreamWaitEvent", &cuda.stream_wait_event);
  library.require("cuStreamIsCapturing", &cuda.stream_is_capturing);
  library.require("cuStreamGetCtx", &cuda.stream_get_ctx);
  library.require("cuEventCreate", &cuda.event_create);
  library.require("cuEventDestroy_v2", &cuda.event_destroy);
  library.require("cuEventRecord", &cuda.event_record);
  library.require("cuEventQuery", &cuda.event_query);
  library.find("cuThreadExchangeStreamCaptureMode", &cuda.thread_exchange_capture_mode);
  cuda.check(cuda.init(0), "cuInit");
  return cuda;
}

}  // namespace

void CudaDriver::check(int error, const char* call) const {
  if (error == 0) return;
  const char* text = nullptr;
  get_error_string(error, &text);
  throw Error(Code::backend, std::string(call) + " failed with error " + std::to_string(error) +
                                 (text != nullptr ? std::string(" (") + text + ")" : ""));
}

const CudaDriver& cuda() {
  static const CudaDriver& loaded = *new CudaDriver(load_driver());  // after a failure the next call tries again
  return loaded;
}

}  // namespace a2a::nccl
