// What the self-tests of the Ascend doubles share.
#pragma once

#include "ascend/hccl_functions.h"
#include "isolated.h"

namespace ascend {

inline void start(int device) {
  const aclError done = aclInit(nullptr);
  CHECK(done == ACL_SUCCESS || done == ACL_ERROR_REPEAT_INITIALIZE);
  CHECK_EQ(aclrtSetDevice(device), ACL_SUCCESS);
}

// An array in device memory.
template <class T>
struct Array {
  explicit Array(const std::vector<T>& values) : length(values.size()) {
    CHECK_EQ(aclrtMalloc(reinterpret_cast<void**>(&data), bytes(), ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
    CHECK_EQ(aclrtMemcpy(data, bytes(), values.data(), bytes(), ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
  }
  Array(size_t elements, T value) : Array(std::vector<T>(elements, value)) {}
  ~Array() { CHECK_EQ(aclrtFree(data), ACL_SUCCESS); }
  Array(const Array&) = delete;

  size_t bytes() const { return length * sizeof(T); }
  std::vector<T> values() const {
    std::vector<T> copy(length);
    CHECK_EQ(aclrtMemcpy(copy.data(), bytes(), data, bytes(), ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
    return copy;
  }

  const size_t length;
  T* data = nullptr;
};

struct Stream {
  Stream() { CHECK_EQ(aclrtCreateStream(&handle), ACL_SUCCESS); }
  ~Stream() { aclrtDestroyStreamForce(handle); }
  Stream(const Stream&) = delete;
  operator aclrtStream() const { return handle; }
  aclrtStream handle = nullptr;
};

}  // namespace ascend
