// Runs batches by NCCL's calls.
#pragma once

#include <memory>

#include "transport/device/vendor.h"
#include "transport/nccl/nccl_api.h"

namespace a2a::nccl {

// Both require that the device is current. The first makes a communicator, and blocks until all ranks have joined. The
// second uses the caller's communicator and never ends it: after an error, operations in flight may still access their
// memory.
std::unique_ptr<device::Collectives> join_nccl(const UniqueId& id, const device::Joining& joining);
std::unique_ptr<device::Collectives> adopt_nccl(Comm comm, Rank rank, int size);

}  // namespace a2a::nccl
