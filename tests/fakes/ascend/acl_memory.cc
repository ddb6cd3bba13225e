// AscendCL: memory and copies.
#include <cstring>

#include "ascend/acl_state.h"

namespace fake {
namespace {

struct Copy {
  Region to, from;
};

// The rules for both kinds of copies. `direction` must be what the addresses are; ACL_MEMCPY_DEFAULT looks at them.
aclError check_copy(void* dst, size_t room, const void* src, size_t count, aclrtMemcpyKind kind, Copy& copy) {
  A2A_FAKE_NOT_NULL(dst);
  A2A_FAKE_NOT_NULL(src);
  if (count == 0 || count > room) {
    return acl_refuse(ACL_ERROR_INVALID_PARAM, std::to_string(count) + " bytes into room for " + std::to_string(room));
  }
  std::string why;
  const auto to = any_region(dst, count, why);
  const auto from = any_region(src, count, why);
  if (!to || !from) return acl_refuse(ACL_ERROR_INVALID_PARAM, why);
  const auto on_device = [](const Region& region) { return region.owner && region.owner->device >= 0; };
  if (kind < ACL_MEMCPY_HOST_TO_HOST || kind > ACL_MEMCPY_DEFAULT) {
    return acl_refuse(ACL_ERROR_INVALID_PARAM, "no such kind of copy");
  }
  const bool to_device = kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  const bool from_device = kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  if (kind != ACL_MEMCPY_DEFAULT && (to_device != on_device(*to) || from_device != on_device(*from))) {
    return acl_refuse(ACL_ERROR_INVALID_PARAM, "the addresses are not what the kind of the copy says");
  }
  copy = {*to, *from};
  return ACL_SUCCESS;
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 64 == 0; }

}  // namespace
}  // namespace fake

using namespace fake;

aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy) {
  A2A_FAKE_READY();
  A2A_FAKE_NOT_NULL(devPtr);
  if (size == 0) return acl_refuse(ACL_ERROR_INVALID_PARAM, "an allocation of no bytes");
  *devPtr = allocate(current_device(), size);
  log("aclrtMalloc", -1, nullptr, size);
  return *devPtr ? ACL_SUCCESS : acl_refuse(ACL_ERROR_RT_MEMORY_ALLOCATION, "out of memory");
}

aclError aclrtFree(void* devPtr) {
  log("aclrtFree");
  A2A_FAKE_READY();
  A2A_FAKE_NOT_NULL(devPtr);
  return release(devPtr, true) ? ACL_SUCCESS : acl_refuse(ACL_ERROR_RT_MEMORY_FREE, "not from aclrtMalloc, or freed");
}

aclError aclrtMallocHost(void** hostPtr, size_t size) {
  A2A_FAKE_READY();
  A2A_FAKE_NOT_NULL(hostPtr);
  if (size == 0) return acl_refuse(ACL_ERROR_INVALID_PARAM, "an allocation of no bytes");
  *hostPtr = allocate(-1, size);
  return *hostPtr ? ACL_SUCCESS : acl_refuse(ACL_ERROR_RT_MEMORY_ALLOCATION, "out of memory");
}

aclError aclrtFreeHost(void* hostPtr) {
  A2A_FAKE_READY(false);
  A2A_FAKE_NOT_NULL(hostPtr);
  return release(hostPtr, false) ? ACL_SUCCESS
                                 : acl_refuse(ACL_ERROR_RT_MEMORY_FREE, "not from aclrtMallocHost, or freed");
}

// Happens at once, and is ordered with no stream.
aclError aclrtMemcpy(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind) {
  log("aclrtMemcpy", -1, nullptr, count);
  A2A_FAKE_READY();
  Copy copy;
  if (const aclError wrong = check_copy(dst, destMax, src, count, kind, copy)) return wrong;
  std::memmove(copy.to.data, copy.from.data, count);
  return ACL_SUCCESS;
}

aclError aclrtMemcpyAsync(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream) {
  log("aclrtMemcpyAsync", -1, stream, count);
  A2A_FAKE_READY();
  const auto found = acl_stream(stream);
  if (!found) return acl_refuse(ACL_ERROR_RT_INVALID_HANDLE, "no such stream; was it destroyed?");
  Copy copy;
  if (const aclError wrong = check_copy(dst, destMax, src, count, kind, copy)) return wrong;
  // "For on-chip Device-to-Device memory copy, both the source and destination addresses must be 64-byte aligned."
  const bool on_chip = copy.to.owner && copy.from.owner && copy.to.owner->device >= 0 &&
                       copy.to.owner->device == copy.from.owner->device;
  if (on_chip && (!aligned(dst) || !aligned(src))) {
    return acl_refuse(ACL_ERROR_RT_ADDR_UNALIGNED, "a copy within a device at addresses that are not 64-byte aligned");
  }
  return acl_result(copy_on(*found, copy.to, copy.from));
}

aclError aclrtMemset(void* devPtr, size_t maxCount, int32_t value, size_t count) {
  A2A_FAKE_READY();
  std::string why;
  const auto region = any_region(devPtr, count, why);
  if (!region) return acl_refuse(ACL_ERROR_INVALID_PARAM, why);
  if (count > maxCount) return acl_refuse(ACL_ERROR_INVALID_PARAM, "more bytes than there is room for");
  if (count > 0) std::memset(region->data, value, count);
  return ACL_SUCCESS;
}

aclError aclrtPointerGetAttributes(const void* ptr, aclrtPtrAttributes* attributes) {
  A2A_FAKE_READY();
  A2A_FAKE_NOT_NULL(ptr);
  A2A_FAKE_NOT_NULL(attributes);
  const auto found = find_allocation(ptr);
  *attributes = {};
  attributes->location.type = !found              ? ACL_MEM_LOCATION_TYPE_UNREGISTERED
                              : found->device < 0 ? ACL_MEM_LOCATION_TYPE_HOST
                                                  : ACL_MEM_LOCATION_TYPE_DEVICE;
  attributes->location.id = found && found->device >= 0 ? static_cast<uint32_t>(found->device) : 0;
  attributes->pageSize = 4096;
  return ACL_SUCCESS;
}
