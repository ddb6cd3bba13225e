#include "transport/nccl/cuda_device.h"

#include <string>

namespace a2a::nccl {
namespace {

constexpr int kNotReady = 600;

// While any thread captures a graph, a thread may not even query an event, unless it has set this mode. Our calls never
// disturb a capture.
constexpr int kRelaxed = 2;

}  // namespace

using device::Event;

CudaDevice::CudaDevice(int index) : cuda_(cuda()), index_(index) {
  int count = 0, device = 0;
  cuda_.check(cuda_.device_get_count(&count), "cuDeviceGetCount");
  if (index < 0 || index >= count) {
    throw Error(Code::invalid_argument,
                "device cuda:" + std::to_string(index) + " does not exist, this process has " + std::to_string(count));
  }
  cuda_.check(cuda_.device_get(&device, index), "cuDeviceGet");
  cuda_.check(cuda_.primary_ctx_retain(&context_, device), "cuDevicePrimaryCtxRetain");
}

std::optional<int> CudaDevice::of(const void* pointer) {
  constexpr int kMemoryType = 2, kDeviceOrdinal = 9;
  constexpr unsigned kDeviceMemory = 2;
  const auto address = reinterpret_cast<CuPointer>(pointer);
  unsigned type = 0;
  int ordinal = 0;
  if (cuda().pointer_get_attribute(&type, kMemoryType, address) != 0 || type != kDeviceMemory) return std::nullopt;
  if (cuda().pointer_get_attribute(&ordinal, kDeviceOrdinal, address) != 0) return std::nullopt;
  return ordinal;
}

std::string CudaDevice::uuid() const {
  std::string bytes(16, '\0');
  int device = 0;
  if (cuda_.device_get_uuid == nullptr || cuda_.device_get(&device, index_) != 0) return {};
  return cuda_.device_get_uuid(bytes.data(), device) == 0 ? bytes : std::string();
}

Stream CudaDevice::new_stream() {
  constexpr unsigned kNonBlocking = 1;
  CuStream stream = nullptr;
  cuda_.check(cuda_.stream_create(&stream, kNonBlocking), "cuStreamCreate");
  return {stream};
}

void CudaDevice::delete_stream(Stream stream) noexcept { cuda_.stream_destroy(stream.handle); }

Event CudaDevice::new_event() {
  constexpr unsigned kWithoutTiming = 2;
  CuEvent event = nullptr;
  cuda_.check(cuda_.event_create(&event, kWithoutTiming), "cuEventCreate");
  return event;
}

void CudaDevice::delete_event(Event event) noexcept { cuda_.event_destroy(event); }

void CudaDevice::record(Event event, Stream stream) {
  cuda_.check(cuda_.event_record(event, stream.handle), "cuEventRecord");
}

bool CudaDevice::reached(Event event) {
  const int status = cuda_.event_query(event);
  if (status != kNotReady) cuda_.check(status, "cuEventQuery");
  return status != kNotReady;
}

void CudaDevice::order(Stream stream, Event event) {
  check_stream(cuda_.stream_wait_event(stream.handle, event, 0), "cuStreamWaitEvent");
}

bool CudaDevice::capturing(Stream stream) {
  constexpr int kActive = 1, kInvalidated = 2;
  int status = 0;
  check_stream(cuda_.stream_is_capturing(stream.handle, &status), "cuStreamIsCapturing");
  if (status == kInvalidated) {
    throw Error(Code::invalid_argument, "the stream's capture was invalidated by an earlier call; end it");
  }
  // The driver accepts another device's stream until something is launched there, when peers are already waiting. For a
  // stream of a green context it does not report the device.
  CuContext context = nullptr;
  if (cuda_.stream_get_ctx(stream.handle, &context) == 0 && context != context_) {
    throw Error(Code::invalid_argument, "the stream is none of " + name() + "'s primary context; pass one that is");
  }
  return status == kActive;
}

void CudaDevice::check_stream(int error, const char* call) const {
  // Errors of the stream's context: this thread's context is valid. The driver's error for a destroyed stream varies.
  constexpr int kInvalidContext = 201, kContextIsDestroyed = 709, kInvalidHandle = 400;
  if (error == kInvalidHandle || error == kInvalidContext || error == kContextIsDestroyed) {
    throw Error(Code::invalid_argument, "the stream does not exist; was it destroyed?");
  }
  cuda_.check(error, call);
}

void* CudaDevice::enter() const {
  cuda_.check(cuda_.ctx_push_current(context_), "cuCtxPushCurrent");
  intptr_t mode = kRelaxed;
  if (cuda_.thread_exchange_capture_mode != nullptr) {
    int exchanged = kRelaxed;
    cuda_.thread_exchange_capture_mode(&exchanged);
    mode = exchanged;
  }
  return reinterpret_cast<void*>(mode);
}

void CudaDevice::leave(void* before) const noexcept {
  int mode = static_cast<int>(reinterpret_cast<intptr_t>(before));
  if (cuda_.thread_exchange_capture_mode != nullptr) cuda_.thread_exchange_capture_mode(&mode);
  CuContext context = nullptr;
  cuda_.ctx_pop_current(&context);
}

}  // namespace a2a::nccl
