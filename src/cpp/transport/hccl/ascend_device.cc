#include "transport/hccl/ascend_device.h"

#include <string>

namespace a2a::hccl {

using device::Event;

AscendDevice::AscendDevice(int index) : api_(api()), index_(index) {
  uint32_t count = 0;
  api_.check_acl(api_.get_device_count(&count), "aclrtGetDeviceCount");
  if (index < 0 || static_cast<uint32_t>(index) >= count) {
    throw Error(Code::invalid_argument,
                "device npu:" + std::to_string(index) + " does not exist, this process has " + std::to_string(count));
  }
}

std::optional<int> AscendDevice::of(const void* pointer) {
  PointerAttributes attributes{};
  if (api().pointer_get_attributes(pointer, &attributes) != 0) return std::nullopt;
  if (attributes.where != PointerAttributes::Where::device) return std::nullopt;
  return static_cast<int>(attributes.id);
}

Stream AscendDevice::new_stream() {
  AclStream stream = nullptr;
  api_.check_acl(api_.create_stream(&stream), "aclrtCreateStream");
  return {stream};
}

// Destroys the stream by force if possible: after an abort its work may never end.
void AscendDevice::delete_stream(Stream stream) noexcept {
  (api_.destroy_stream_force != nullptr ? api_.destroy_stream_force : api_.destroy_stream)(stream.handle);
}

Event AscendDevice::new_event() {
  constexpr uint32_t kSynchronising = 1;  // ACL_EVENT_SYNC
  AclEvent event = nullptr;
  api_.check_acl(api_.create_event_with_flag(&event, kSynchronising), "aclrtCreateEventWithFlag");
  return event;
}

void AscendDevice::delete_event(Event event) noexcept { api_.destroy_event(event); }

void AscendDevice::record(Event event, Stream stream) {
  api_.check_acl(api_.record_event(event, stream.handle), "aclrtRecordEvent");
}

bool AscendDevice::reached(Event event) {
  constexpr int32_t kComplete = 1;  // for the status of a stream it is the other way round
  int32_t status = 0;
  api_.check_acl(api_.query_event_status(event, &status), "aclrtQueryEventStatus");
  return status == kComplete;
}

void AscendDevice::order(Stream stream, Event event) {
  api_.check_acl(api_.stream_wait_event(stream.handle, event), "aclrtStreamWaitEvent");
}

std::optional<std::string> AscendDevice::failure(Stream stream) {
  int32_t status = 0;
  const int error = api_.stream_query == nullptr ? 0 : api_.stream_query(stream.handle, &status);
  if (error == 0) return std::nullopt;
  return "the stream failed with " + api_.describe_acl(error);
}

void* AscendDevice::enter() const {
  AclContext before = nullptr;
  if (api_.get_current_context(&before) != 0) before = nullptr;  // a thread without a context gets an error
  api_.check_acl(api_.set_device(index_), "aclrtSetDevice");
  return before;
}

void AscendDevice::leave(void* before) const noexcept {
  if (before != nullptr) api_.set_current_context(before);
}

}  // namespace a2a::hccl
