// An NVIDIA GPU through the CUDA driver, in its primary context, which is the one that frameworks use.
#pragma once

#include <optional>

#include "transport/device/device.h"
#include "transport/nccl/cuda_driver.h"

namespace a2a::nccl {

class CudaDevice final : public device::Device {
 public:
  explicit CudaDevice(int index);

  // Returns the device whose memory the pointer refers to, or nullopt.
  static std::optional<int> of(const void* pointer);

  Memory memory() const override { return Memory::cuda; }
  int index() const override { return index_; }
  std::string uuid() const override;

  Stream new_stream() override;
  void delete_stream(Stream stream) noexcept override;
  device::Event new_event() override;
  void delete_event(device::Event event) noexcept override;
  void record(device::Event event, Stream stream) override;
  bool reached(device::Event event) override;
  void order(Stream stream, device::Event event) override;
  bool capturing(Stream stream) override;
  bool has_default_stream() const override { return true; }

 private:
  void* enter() const override;
  void leave(void* before) const noexcept override;

  // As CudaDriver::check, for a call with a stream of the program.
  void check_stream(int error, const char* call) const;

  const CudaDriver& cuda_;
  int index_;
  CuContext context_ = nullptr;  // retained as long as the process lives, as frameworks do
};

}  // namespace a2a::nccl
