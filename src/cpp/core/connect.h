// What the core asks of the transports, none of which it knows by name: transport/choose.cc answers.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "a2a/bootstrap.h"
#include "core/device_transport.h"
#include "core/transport.h"

namespace a2a {

// Collective over the bootstrap: shared memory where all ranks live on one host, otherwise shared memory on each and
// the bootstrap's network between them, which is made only then. Throws Error(unsupported) when ranks live on several
// hosts and there is none.
std::unique_ptr<Transport> connect(Rank rank, int size, Bootstrap& bootstrap, Deadline deadline);

// Collective. When one rank cannot, no rank does: all throw, the others naming it. They can try again after that,
// unless a rank was lost, the deadline passed, or a signal ended the wait: then the communicator is broken.
std::shared_ptr<DeviceTransport> connect_device(Memory memory, int index, const DeviceMeeting& meeting);

}  // namespace a2a
