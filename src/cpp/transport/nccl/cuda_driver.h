// The calls of the CUDA driver that the transport needs: declarations of our own, loaded while the program runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/dynamic_library.h"

namespace a2a::nccl {

using CuContext = void*;
using CuStream = void*;
using CuEvent = void*;
using CuPointer = unsigned long long;

struct CudaDriver {
  DynamicLibrary library;

  int (*init)(unsigned flags) = nullptr;
  int (*get_error_string)(int error, const char** text) = nullptr;
  int (*device_get_count)(int*) = nullptr;
  int (*device_get)(int* device, int ordinal) = nullptr;
  int (*device_get_attribute)(int* value, int attribute, int device) = nullptr;
  int (*device_get_uuid)(void* uuid, int device) = nullptr;  // 16 bytes; nullptr before CUDA 11.4
  int (*primary_ctx_retain)(CuContext*, int device) = nullptr;
  int (*ctx_push_current)(CuContext) = nullptr;
  int (*ctx_pop_current)(CuContext*) = nullptr;
  int (*ctx_get_current)(CuContext*) = nullptr;
  int (*ctx_get_device)(int* device) = nullptr;
  int (*pointer_get_attribute)(void* value, int attribute, CuPointer) = nullptr;
  int (*memcpy_async)(CuPointer to, CuPointer from, size_t bytes, CuStream) = nullptr;
  int (*stream_create)(CuStream*, unsigned flags) = nullptr;
  int (*stream_destroy)(CuStream) = nullptr;
  int (*stream_wait_event)(CuStream, CuEvent, unsigned flags) = nullptr;
  int (*stream_is_capturing)(CuStream, int* status) = nullptr;
  int (*stream_get_ctx)(CuStream, CuContext*) = nullptr;
  int (*event_create)(CuEvent*, unsigned flags) = nullptr;
  int (*event_destroy)(CuEvent) = nullptr;
  int (*event_record)(CuEvent, CuStream) = nullptr;
  int (*event_query)(CuEvent) = nullptr;
  int (*thread_exchange_capture_mode)(int* mode) = nullptr;  // nullptr before CUDA 10.1

  // Throws Error(backend) with the driver's text.
  void check(int error, const char* call) const;
};

// Loads and initialises the driver on first use. Throws Error(unsupported) when there is none.
const CudaDriver& cuda();

}  // namespace a2a::nccl
