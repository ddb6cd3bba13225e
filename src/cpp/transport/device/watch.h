// The thread that checks operations on devices, because no thread may be waiting for them.
#pragma once

#include <memory>

#include "transport/device/stream_transport.h"

namespace a2a::device {

// Checks the transport every few milliseconds as long as it has operations in flight.
void watch(const std::shared_ptr<StreamTransport>& transport);

}  // namespace a2a::device
