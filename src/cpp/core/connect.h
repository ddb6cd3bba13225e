// The factories of transports, by which the core stays independent of each of them. transport/choose.cc defines them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "a2a/bootstrap.h"
#include "core/device_transport.h"
#include "core/transport.h"

namespace a2a {

// Collective over the bootstrap. Returns shared memory where all ranks are on one host; otherwise shared memory on each
// host and the bootstrap's network, which is made only then, between them. Throws Error(unsupported) when ranks are on
// several hosts and there is no network.
std::unique_ptr<Transport> connect(Rank rank, int size, Bootstrap& bootstrap, Deadline deadline);

// Collective. If one rank fails, all throw, and the errors of the others name it. They may try again after that, unless
// a rank was lost, the deadline passed, or a signal ended the wait: then the communicator is broken.
std::shared_ptr<DeviceTransport> connect_device(Memory memory, int index, const DeviceMeeting& meeting);

}  // namespace a2a
