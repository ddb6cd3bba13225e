// The CUDA driver: names. Programs ask for a function by its plain name and the version they were written for, and get
// the variant of then; the library's own symbols have suffixes.
#include <cstring>

#include "nvidia/cuda_state.h"

namespace fake {
namespace {

struct Symbol {
  const char* name;
  void* function;
  int since;  // the version that brought this variant
};

#define A2A_FAKE_SYMBOL(name, function, since) {name, reinterpret_cast<void*>(function), since}
const Symbol kSymbols[] = {
    A2A_FAKE_SYMBOL("cuInit", cuInit, 2000),
    A2A_FAKE_SYMBOL("cuDriverGetVersion", cuDriverGetVersion, 2020),
    A2A_FAKE_SYMBOL("cuGetErrorString", cuGetErrorString, 6000),
    A2A_FAKE_SYMBOL("cuGetErrorName", cuGetErrorName, 6000),
    A2A_FAKE_SYMBOL("cuGetProcAddress", cuGetProcAddress_v2, 12000),
    A2A_FAKE_SYMBOL("cuDeviceGetCount", cuDeviceGetCount, 2000),
    A2A_FAKE_SYMBOL("cuDeviceGet", cuDeviceGet, 2000),
    A2A_FAKE_SYMBOL("cuDeviceGetName", cuDeviceGetName, 2000),
    A2A_FAKE_SYMBOL("cuDeviceGetAttribute", cuDeviceGetAttribute, 2000),
    A2A_FAKE_SYMBOL("cuDeviceGetUuid", cuDeviceGetUuid_v2, 11040),
    A2A_FAKE_SYMBOL("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain, 7000),
    A2A_FAKE_SYMBOL("cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease_v2, 11000),
    A2A_FAKE_SYMBOL("cuCtxGetCurrent", cuCtxGetCurrent, 4000),
    A2A_FAKE_SYMBOL("cuCtxSetCurrent", cuCtxSetCurrent, 4000),
    A2A_FAKE_SYMBOL("cuCtxPushCurrent", cuCtxPushCurrent_v2, 4000),
    A2A_FAKE_SYMBOL("cuCtxPopCurrent", cuCtxPopCurrent_v2, 4000),
    A2A_FAKE_SYMBOL("cuCtxGetDevice", cuCtxGetDevice, 2000),
    A2A_FAKE_SYMBOL("cuCtxSynchronize", cuCtxSynchronize, 2000),
    A2A_FAKE_SYMBOL("cuMemAlloc", cuMemAlloc_v2, 3020),
    A2A_FAKE_SYMBOL("cuMemFree", cuMemFree_v2, 3020),
    A2A_FAKE_SYMBOL("cuMemAllocHost", cuMemAllocHost_v2, 3020),
    A2A_FAKE_SYMBOL("cuMemHostAlloc", cuMemHostAlloc, 2020),
    A2A_FAKE_SYMBOL("cuMemFreeHost", cuMemFreeHost, 2000),
    A2A_FAKE_SYMBOL("cuMemGetAddressRange", cuMemGetAddressRange_v2, 3020),
    A2A_FAKE_SYMBOL("cuPointerGetAttribute", cuPointerGetAttribute, 4000),
    A2A_FAKE_SYMBOL("cuMemcpyHtoD", cuMemcpyHtoD_v2, 3020),
    A2A_FAKE_SYMBOL("cuMemcpyDtoH", cuMemcpyDtoH_v2, 3020),
    A2A_FAKE_SYMBOL("cuMemcpyAsync", cuMemcpyAsync, 4000),
    A2A_FAKE_SYMBOL("cuMemsetD8", cuMemsetD8_v2, 3020),
    A2A_FAKE_SYMBOL("cuStreamCreate", cuStreamCreate, 2000),
    A2A_FAKE_SYMBOL("cuStreamCreateWithPriority", cuStreamCreateWithPriority, 5050),
    A2A_FAKE_SYMBOL("cuStreamDestroy", cuStreamDestroy_v2, 4000),
    A2A_FAKE_SYMBOL("cuStreamSynchronize", cuStreamSynchronize, 2000),
    A2A_FAKE_SYMBOL("cuStreamQuery", cuStreamQuery, 2000),
    A2A_FAKE_SYMBOL("cuStreamGetCtx", cuStreamGetCtx, 9020),
    A2A_FAKE_SYMBOL("cuStreamWaitEvent", cuStreamWaitEvent, 3020),
    A2A_FAKE_SYMBOL("cuStreamWriteValue32", cuStreamWriteValue32_v2, 11070),
    A2A_FAKE_SYMBOL("cuStreamWaitValue32", cuStreamWaitValue32_v2, 11070),
    A2A_FAKE_SYMBOL("cuEventCreate", cuEventCreate, 2000),
    A2A_FAKE_SYMBOL("cuEventRecord", cuEventRecord, 2000),
    A2A_FAKE_SYMBOL("cuEventQuery", cuEventQuery, 2000),
    A2A_FAKE_SYMBOL("cuEventSynchronize", cuEventSynchronize, 2000),
    A2A_FAKE_SYMBOL("cuEventDestroy", cuEventDestroy_v2, 4000),
    A2A_FAKE_SYMBOL("cuStreamIsCapturing", cuStreamIsCapturing, 10000),
    A2A_FAKE_SYMBOL("cuThreadExchangeStreamCaptureMode", cuThreadExchangeStreamCaptureMode, 10010),
    A2A_FAKE_SYMBOL("cuStreamBeginCapture", cuStreamBeginCapture_v2, 10010),
    A2A_FAKE_SYMBOL("cuStreamEndCapture", cuStreamEndCapture, 10000),
    A2A_FAKE_SYMBOL("cuGraphInstantiateWithFlags", cuGraphInstantiateWithFlags, 11040),
    A2A_FAKE_SYMBOL("cuGraphLaunch", cuGraphLaunch, 10000),
    A2A_FAKE_SYMBOL("cuGraphExecDestroy", cuGraphExecDestroy, 10000),
    A2A_FAKE_SYMBOL("cuGraphDestroy", cuGraphDestroy, 10000),
};
#undef A2A_FAKE_SYMBOL

struct Text {
  CUresult code;
  const char *name, *text;
};
const Text kTexts[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

const Text* text_of(CUresult code) {
  for (const Text& text : kTexts) {
    if (text.code == code) return &text;
  }
  return nullptr;
}

}  // namespace
}  // namespace fake

using namespace fake;

CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t,
                             CUdriverProcAddressQueryResult* symbolStatus) {
  A2A_FAKE_VALUE(symbol && pfn);
  *pfn = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  for (const Symbol& known : kSymbols) {
    if (std::strcmp(known.name, symbol) != 0) continue;
    const bool new_enough = cudaVersion >= known.since;
    status = new_enough ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    if (new_enough) *pfn = known.function;
  }
  if (symbolStatus) *symbolStatus = status;
  // Without a place for the status the result itself says that there is no such function.
  return *pfn || symbolStatus ? CUDA_SUCCESS : cuda_refuse(CUDA_ERROR_NOT_FOUND, symbol);
}

CUresult cuGetErrorString(CUresult error, const char** pStr) {
  A2A_FAKE_VALUE(pStr);
  const Text* const text = text_of(error);
  *pStr = text ? text->text : "unknown error";
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** pStr) {
  A2A_FAKE_VALUE(pStr);
  const Text* const text = text_of(error);
  *pStr = text ? text->name : "CUDA_ERROR_UNKNOWN";
  return CUDA_SUCCESS;
}
