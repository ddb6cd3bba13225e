// An Ascend device through AscendCL.
#pragma once

#include <optional>
#include <string>

#include "transport/device/device.h"
#include "transport/hccl/hccl_api.h"

namespace a2a::hccl {

class AscendDevice final : public device::Device {
 public:
  explicit AscendDevice(int index);

  // Returns the device whose memory the pointer refers to, or nullopt.
  static std::optional<int> of(const void* pointer);

  Memory memory() const override { return Memory::npu; }
  int index() const override { return index_; }

  Stream new_stream() override;
  void delete_stream(Stream stream) noexcept override;
  device::Event new_event() override;
  void delete_event(device::Event event) noexcept override;
  void record(device::Event event, Stream stream) override;
  bool reached(device::Event event) override;
  void order(Stream stream, device::Event event) override;
  std::optional<std::string> failure(Stream stream) override;
  bool capturing(Stream) override { return false; }           // graphs are not supported
  bool has_default_stream() const override { return false; }  // HCCL requires a stream of the caller's

 private:
  void* enter() const override;
  void leave(void* before) const noexcept override;

  const Api& api_;
  int index_;
};

}  // namespace a2a::hccl
