// The thread that looks after operations on devices, because nobody may be waiting for them.
#pragma once

#include <memory>

#include "transport/device/stream_transport.h"

namespace a2a::device {

// Looks after the transport every few milliseconds as long as it has operations in flight.
void watch(const std::shared_ptr<StreamTransport>& transport);

}  // namespace a2a::device
