// A batch as NCCL's calls.
#pragma once

#include <memory>

#include "transport/device/vendor.h"
#include "transport/nccl/nccl_api.h"

namespace a2a::nccl {

// Both want the device to be current. The first makes a communicator and blocks until all ranks are there. The second
// works over one of the caller's, which it never ends: after an error, operations in flight may still touch their
// memory.
std::unique_ptr<device::Collectives> join_nccl(const UniqueId& id, const device::Joining& joining);
std::unique_ptr<device::Collectives> adopt_nccl(Comm comm, Rank rank, int size);

}  // namespace a2a::nccl
