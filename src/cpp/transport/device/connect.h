// Connects the ranks of a group with a vendor's communicator.
#pragma once

#include <memory>

#include "core/device_transport.h"

namespace a2a::device {

// connect_device() with the vendor that serves this kind of memory.
std::shared_ptr<DeviceTransport> connect(Memory memory, int index, const DeviceMeeting& meeting);

}  // namespace a2a::device
