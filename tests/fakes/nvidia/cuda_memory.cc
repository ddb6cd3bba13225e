// The CUDA driver: memory and copies.
#include <cstring>

#include "nvidia/cuda_state.h"

namespace fake {
namespace {

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// Either side may be host or device memory: the driver knows by the address.
CUresult copy_regions(void* to, const void* from, size_t bytes, Region& into, Region& out_of) {
  std::string why;
  const auto a = any_region(to, bytes, why), b = any_region(from, bytes, why);
  if (!a || !b) return cuda_refuse(CUDA_ERROR_INVALID_VALUE, why);
  into = *a;
  out_of = *b;
  return CUDA_SUCCESS;
}

bool on_device(const Region& region) { return region.bytes == 0 || (region.owner && region.owner->device >= 0); }

// Happens at once, and is ordered with no stream.
CUresult copy_now(void* to, const void* from, size_t bytes, bool to_device) {
  Region into, out_of;
  if (const CUresult wrong = copy_regions(to, from, bytes, into, out_of)) return wrong;
  if (!on_device(to_device ? into : out_of)) return cuda_refuse(CUDA_ERROR_INVALID_VALUE, "not device memory");
  if (bytes > 0) std::memmove(into.data, out_of.data, bytes);
  return CUDA_SUCCESS;
}

CUresult allocate_host(void** made, size_t bytes) {
  A2A_FAKE_READY();
  A2A_FAKE_VALUE(made && bytes > 0);
  *made = allocate(-1, bytes);
  return *made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// A word of device memory that streams of several processes may write and wait for.
CUresult word(CUdeviceptr address, std::shared_ptr<const Allocation>& owner, uint32_t*& at) {
  std::string why;
  const auto region = any_region(pointer(address), sizeof(uint32_t), why);
  if (!region || !region->owner || address % sizeof(uint32_t)) {
    return cuda_refuse(CUDA_ERROR_INVALID_VALUE, "not a word of device memory");
  }
  owner = region->owner;
  at = reinterpret_cast<uint32_t*>(region->data);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace fake

using namespace fake;

CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  A2A_FAKE_READY();
  A2A_FAKE_SAFE();
  A2A_FAKE_VALUE(dptr && bytesize > 0);
  *dptr = reinterpret_cast<CUdeviceptr>(allocate(current_device(), bytesize));
  log("cuMemAlloc", -1, nullptr, bytesize);
  return *dptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFree_v2(CUdeviceptr dptr) {
  A2A_FAKE_READY();
  A2A_FAKE_SAFE();
  A2A_FAKE_VALUE(release(pointer(dptr), true));
  return CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void** pp, size_t bytesize) { return allocate_host(pp, bytesize); }
CUresult cuMemHostAlloc(void** pp, size_t bytesize, unsigned int) { return allocate_host(pp, bytesize); }

CUresult cuMemFreeHost(void* p) {
  A2A_FAKE_READY();
  A2A_FAKE_VALUE(release(p, false));
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
  A2A_FAKE_READY();
  const auto found = find_allocation(pointer(dptr));
  if (!found || found->device < 0) return cuda_refuse(CUDA_ERROR_NOT_FOUND, "not device memory");
  if (pbase) *pbase = reinterpret_cast<CUdeviceptr>(found->base);
  if (psize) *psize = found->bytes;
  return CUDA_SUCCESS;
}

// Memory that the driver does not know has no attributes, not even that of being host memory.
CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  A2A_FAKE_READY(false);
  A2A_FAKE_VALUE(data);
  const auto found = find_allocation(pointer(ptr));
  if (!found) return cuda_refuse(CUDA_ERROR_INVALID_VALUE, "memory that the driver does not know");
  const auto answer = [&](auto value) {
    std::memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return answer(static_cast<unsigned>(found->device >= 0 ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return answer(0u);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return answer(false);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return answer(std::max(found->device, 0));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return answer(reinterpret_cast<CUdeviceptr>(found->base));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return answer(found->bytes);
    default:
      return cuda_refuse(CUDA_ERROR_NOT_SUPPORTED, "an attribute that the double does not know");
  }
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount) {
  log("cuMemcpyHtoD", -1, nullptr, ByteCount);
  A2A_FAKE_READY();
  A2A_FAKE_SAFE();
  return copy_now(pointer(dstDevice), srcHost, ByteCount, true);
}

CUresult cuMemcpyDtoH_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
  log("cuMemcpyDtoH", -1, nullptr, ByteCount);
  A2A_FAKE_READY();
  A2A_FAKE_SAFE();
  return copy_now(dstHost, pointer(srcDevice), ByteCount, false);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) {
  log("cuMemcpyAsync", -1, hStream, ByteCount);
  A2A_FAKE_READY();
  const auto stream = cuda_stream(hStream);
  if (!stream) return cuda_refuse(CUDA_ERROR_INVALID_HANDLE, "no such stream; was it destroyed?");
  Region to, from;
  if (const CUresult wrong = copy_regions(pointer(dst), pointer(src), ByteCount, to, from)) return wrong;
  return cuda_result(copy_on(*stream, to, from));
}

CUresult cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N) {
  A2A_FAKE_READY();
  A2A_FAKE_SAFE();
  std::string why;
  const auto region = any_region(pointer(dstDevice), N, why);
  A2A_FAKE_VALUE(region && on_device(*region));
  if (N > 0) std::memset(region->data, uc, N);
  return CUDA_SUCCESS;
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int) {
  A2A_FAKE_READY();
  const auto found = cuda_stream(stream);
  if (!found) return cuda_refuse(CUDA_ERROR_INVALID_HANDLE, "no such stream; was it destroyed?");
  std::shared_ptr<const Allocation> owner;
  uint32_t* at = nullptr;
  if (const CUresult wrong = word(addr, owner, at)) return wrong;
  found->push_action([owner, at, value](const Stream&, const Failure& earlier) {
    if (!earlier) std::atomic_ref(*at).store(value);
    return earlier;
  });
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
  A2A_FAKE_READY();
  A2A_FAKE_VALUE(flags == CU_STREAM_WAIT_VALUE_GEQ || flags == CU_STREAM_WAIT_VALUE_EQ);
  const auto found = cuda_stream(stream);
  if (!found) return cuda_refuse(CUDA_ERROR_INVALID_HANDLE, "no such stream; was it destroyed?");
  std::shared_ptr<const Allocation> owner;
  uint32_t* at = nullptr;
  if (const CUresult wrong = word(addr, owner, at)) return wrong;
  found->push_action([owner, at, value, flags](const Stream& on, const Failure& earlier) {
    const auto reached = [&] {
      const uint32_t now = std::atomic_ref(*at).load();
      return flags == CU_STREAM_WAIT_VALUE_EQ ? now == value : static_cast<int32_t>(now - value) >= 0;
    };
    while (!earlier && !on.stopping() && !reached()) std::this_thread::sleep_for(std::chrono::microseconds(200));
    return earlier;
  });
  return CUDA_SUCCESS;
}
