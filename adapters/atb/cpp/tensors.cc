#include "tensors.h"

#include <iterator>
#include <optional>

#include "failure.h"

namespace a2a::atb {
namespace {

constexpr uint64_t kMostBytes = uint64_t{256} << 30;

struct Known {
  aclDataType dtype;
  const char* name;
  size_t bytes;
  uint8_t code;  // DLPack's, for the dtypes of ATB's table
  bool taken;
};

constexpr Known kKnown[] = {
    {ACL_FLOAT16, "float16", 2, 2, true},
    {ACL_FLOAT, "float", 4, 2, true},
    {ACL_INT8, "int8", 1, 0, true},
    {ACL_INT32, "int32", 4, 0, true},
    {ACL_INT16, "int16", 2, 0, true},
    {ACL_INT64, "int64", 8, 0, true},
    {ACL_BF16, "bf16", 2, 4, true},
    {ACL_UINT8, "uint8", 1, 1, false},
    {ACL_UINT16, "uint16", 2, 1, false},
    {ACL_UINT32, "uint32", 4, 1, false},
    {ACL_UINT64, "uint64", 8, 1, false},
    {ACL_DOUBLE, "double", 8, 2, false},
    {ACL_BOOL, "bool", 1, 6, false},
    {ACL_COMPLEX64, "complex64", 8, 5, false},
    {ACL_COMPLEX128, "complex128", 16, 5, false},
};

const Known* find(aclDataType dtype) {
  for (const Known& known : kKnown) {
    if (known.dtype == dtype) return &known;
  }
  return nullptr;
}

std::optional<uint64_t> numel(const TensorDesc& desc) {
  if (desc.shape.dimNum == 0 || desc.shape.dimNum > MAX_DIM) return std::nullopt;
  uint64_t product = 1;
  for (uint64_t i = 0; i < desc.shape.dimNum; ++i) {
    const int64_t dim = desc.shape.dims[i];
    if (dim < 0 || __builtin_mul_overflow(product, static_cast<uint64_t>(dim), &product)) return std::nullopt;
  }
  return product;
}

std::optional<uint64_t> bytes(const TensorDesc& desc) {
  const auto elems = numel(desc);
  uint64_t product = 0;
  if (!elems || __builtin_mul_overflow(*elems, elem_bytes(desc.dtype), &product)) return std::nullopt;
  return product;
}

}  // namespace

size_t elem_bytes(aclDataType dtype) {
  const Known* known = find(dtype);
  return known == nullptr ? 0 : known->bytes;
}

std::string to_string(aclDataType dtype) {
  const Known* known = find(dtype);
  return std::string(known == nullptr ? "aclDataType" : known->name) + " (" + std::to_string(static_cast<int>(dtype)) +
         ")";
}

bool takes(aclDataType dtype, DType* core) {
  const Known* known = find(dtype);
  if (known == nullptr || !known->taken) return false;
  *core = {known->code, static_cast<uint8_t>(known->bytes * 8), 1};
  return true;
}

std::string shape_text(const TensorDesc& desc) {
  std::string text = "[";
  for (uint64_t i = 0; i < desc.shape.dimNum && i < MAX_DIM; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(desc.shape.dims[i]);
  }
  return text + "]";
}

void check_extent(const TensorDesc& desc, const std::string& name) {
  if (desc.shape.dimNum == 0 || desc.shape.dimNum > MAX_DIM) {
    refuse(ERROR_INVALID_TENSOR_DIM, name, ": dimNum [", desc.shape.dimNum, "] should be between 1 and ", MAX_DIM);
  }
  const auto size = bytes(desc);
  if (!size || *size == 0 || *size > kMostBytes) {
    refuse(ERROR_INVALID_TENSOR_SIZE, name, ": shape ", shape_text(desc), " of dtype ", to_string(desc.dtype), " has ",
           size ? std::to_string(*size) : "no valid number of", " bytes; 1 to ", kMostBytes, " (256 GiB) are allowed");
  }
}

uint64_t Utils::GetTensorSize(const TensorDesc& desc) { return bytes(desc).value_or(0); }
uint64_t Utils::GetTensorSize(const Tensor& tensor) { return GetTensorSize(tensor.desc); }
uint64_t Utils::GetTensorNumel(const TensorDesc& desc) { return numel(desc).value_or(0); }
uint64_t Utils::GetTensorNumel(const Tensor& tensor) { return GetTensorNumel(tensor.desc); }

const char* to_string(ErrorType status) {
  // In the order of the codes.
  static constexpr const char* kNames[] = {
      "NO_ERROR",
      "ERROR_INVALID_PARAM",
      "ERROR_INVALID_GRAPH",
      "ERROR_INTERNAL_ERROR",
      "ERROR_RT_FAIL",
      "ERROR_INVALID_IN_TENSOR_NUM",
      "ERROR_INVALID_TENSOR_DTYPE",
      "ERROR_INVALID_TENSOR_FORMAT",
      "ERROR_INVALID_TENSOR_DIM",
      "ERROR_INVALID_TENSOR_SIZE",
      "ERROR_OPERATION_NULL_RUNNER",
      "ERROR_GRAPH_INFERSHAPE_FUNC_FAIL",
      "ERROR_CANN_ERROR",
      "ERROR_INVALID_TENSOR_INI_MATCH",
      "ERROR_INVALID_TENSOR_ADDR",
      "ERROR_INVALID_TENSOR_NUM",
      "ERROR_INVALID_TENSOR_DIM_NUM",
      "ERROR_INVALID_SINGLE_OPERATION_PARAM",
      "ERROR_GRAPH_NODE_RESHAPE_FUNC_FAIL",
      "ERROR_INVALID_GRAPH_NODE_CHUNK",
      "ERROR_INVALID_CONTEXT_ADDR",
      "ERROR_INVALID_STREAM",
      "ERROR_INVALID_WORKSPACE_SIZE",
      "ERROR_INVALID_WORKSPACE_ADDR",
      "ERROR_INVALID_OPERATION_ADDR",
      "ERROR_HCCL_FAIL",
      "ERROR_OUT_OF_DEVICE_MEMORY",
      "ERROR_OUT_OF_HOST_MEMORY",
      "ERROR_COMM_EMPTY",
      "ERROR_COPY_HOST_MEMORY_FAIL",
  };
  static_assert(std::size(kNames) == ERROR_COPY_HOST_MEMORY_FAIL + 1);
  const auto index = static_cast<size_t>(status);
  return index < std::size(kNames) ? kNames[index] : "unknown status";
}

}  // namespace a2a::atb
