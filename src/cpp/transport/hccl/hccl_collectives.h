// A batch as HCCL's calls.
#pragma once

#include <memory>

#include "transport/device/vendor.h"
#include "transport/hccl/hccl_api.h"

namespace a2a::hccl {

enum class Ownership { ours, callers };

// HCCL's collectives on that device. A communicator of ours is destroyed with the result, or by its close() or abort().
std::unique_ptr<device::Collectives> new_collectives(device::Device& device, Comm comm, int size, Ownership ownership);

}  // namespace a2a::hccl
