// What the files of the CUDA double share.
#pragma once

#include <memory>

#include "engine/stream.h"
#include "nvidia/cuda_functions.h"

namespace fake {

// CUDA_SUCCESS where calls may be made: after cuInit, in this process, and with `context` where one is current.
CUresult cuda_ready(bool context = true);
CUresult cuda_refuse(CUresult code, const std::string& text);
CUresult cuda_result(const Failure& failure);

// The primary context of a device, or null while nobody retains it.
CUcontext cuda_context(int device);

// The stream of a handle: 0 and 1 are the device's own, 2 is this thread's; null when it does not exist.
std::shared_ptr<Stream> cuda_stream(CUstream handle);

// Calls that a capture of this thread, or a global one of any thread, forbids: they spoil it and return this code.
CUresult cuda_unsafe_in_capture();

}  // namespace fake

#define A2A_FAKE_READY(...) \
  if (const CUresult not_ready = fake::cuda_ready(__VA_ARGS__)) return not_ready
#define A2A_FAKE_SAFE() \
  if (const CUresult unsafe = fake::cuda_unsafe_in_capture()) return unsafe
#define A2A_FAKE_VALUE(...) \
  if (!(__VA_ARGS__)) return fake::cuda_refuse(CUDA_ERROR_INVALID_VALUE, "not so: " #__VA_ARGS__)
