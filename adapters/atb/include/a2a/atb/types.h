// ATB's status codes and tensors.
#pragma once

#include <cstdint>

#include "a2a/atb/acl.h"
#include "a2a/atb/svector.h"
#include "a2a/types.h"

namespace a2a::atb {

using Status = int32_t;
using HcclComm = void*;

constexpr uint32_t MAX_DIM = 8;

enum ErrorType : int {
  NO_ERROR = 0,
  ERROR_INVALID_PARAM,
  ERROR_INVALID_GRAPH,
  ERROR_INTERNAL_ERROR,
  ERROR_RT_FAIL,
  ERROR_INVALID_IN_TENSOR_NUM,
  ERROR_INVALID_TENSOR_DTYPE,
  ERROR_INVALID_TENSOR_FORMAT,
  ERROR_INVALID_TENSOR_DIM,
  ERROR_INVALID_TENSOR_SIZE,
  ERROR_OPERATION_NULL_RUNNER,
  ERROR_GRAPH_INFERSHAPE_FUNC_FAIL,
  ERROR_CANN_ERROR,
  ERROR_INVALID_TENSOR_INI_MATCH,
  ERROR_INVALID_TENSOR_ADDR,
  ERROR_INVALID_TENSOR_NUM,
  ERROR_INVALID_TENSOR_DIM_NUM,
  ERROR_INVALID_SINGLE_OPERATION_PARAM,
  ERROR_GRAPH_NODE_RESHAPE_FUNC_FAIL,
  ERROR_INVALID_GRAPH_NODE_CHUNK,
  ERROR_INVALID_CONTEXT_ADDR,
  ERROR_INVALID_STREAM,
  ERROR_INVALID_WORKSPACE_SIZE,
  ERROR_INVALID_WORKSPACE_ADDR,
  ERROR_INVALID_OPERATION_ADDR,
  ERROR_HCCL_FAIL,
  ERROR_OUT_OF_DEVICE_MEMORY,
  ERROR_OUT_OF_HOST_MEMORY,
  ERROR_COMM_EMPTY,
  ERROR_COPY_HOST_MEMORY_FAIL,
};

// Returns "ERROR_INVALID_PARAM" for that status; "unknown status" for a number that is none of the above.
A2A_API const char* to_string(ErrorType);

struct Dims {
  int64_t dims[MAX_DIM];
  uint64_t dimNum = 0;
};

struct TensorDesc {
  aclDataType dtype = ACL_DT_UNDEFINED;
  aclFormat format = ACL_FORMAT_UNDEFINED;
  Dims shape;
};

struct Tensor {
  TensorDesc desc;
  void* deviceData = nullptr;  // for host backends an address in host memory
  void* hostData = nullptr;
  uint64_t dataSize = 0;  // bytes
};

struct VariantPack {
  SVector<Tensor> inTensors;
  SVector<Tensor> outTensors;
};

class A2A_API Utils {
 public:
  // Return the bytes and the elements of a tensor with this description; 0 for no dimensions, an unknown dtype or an
  // overflow.
  static uint64_t GetTensorSize(const Tensor& tensor);
  static uint64_t GetTensorSize(const TensorDesc& desc);
  static uint64_t GetTensorNumel(const Tensor& tensor);
  static uint64_t GetTensorNumel(const TensorDesc& desc);
};

}  // namespace a2a::atb
