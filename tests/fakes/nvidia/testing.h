// What the self-tests of the NVIDIA doubles share.
#pragma once

#include "isolated.h"
#include "nvidia/cuda_functions.h"
#include "nvidia/nccl_functions.h"

namespace nvidia {

// Makes the context of a device current in this thread.
inline CUcontext start(int device) {
  CUcontext context = nullptr;
  CHECK_EQ(cuInit(0), CUDA_SUCCESS);
  CHECK_EQ(cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
  CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  return context;
}

// An array in device memory.
template <class T>
struct Array {
  explicit Array(const std::vector<T>& values) : length(values.size()) {
    CHECK_EQ(cuMemAlloc_v2(&address, bytes()), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyHtoD_v2(address, values.data(), bytes()), CUDA_SUCCESS);
  }
  Array(size_t elements, T value) : Array(std::vector<T>(elements, value)) {}
  ~Array() { CHECK_EQ(cuMemFree_v2(address), CUDA_SUCCESS); }
  Array(const Array&) = delete;

  T* at(size_t element = 0) const { return reinterpret_cast<T*>(address) + element; }
  size_t bytes() const { return length * sizeof(T); }
  std::vector<T> values() const {
    std::vector<T> copy(length);
    CHECK_EQ(cuMemcpyDtoH_v2(copy.data(), address, bytes()), CUDA_SUCCESS);
    return copy;
  }

  const size_t length;
  CUdeviceptr address = 0;
};

struct Stream {
  Stream() { CHECK_EQ(cuStreamCreateWithPriority(&handle, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS); }
  ~Stream() { cuStreamDestroy_v2(handle); }
  Stream(const Stream&) = delete;
  operator CUstream() const { return handle; }
  CUstream handle = nullptr;
};

}  // namespace nvidia
