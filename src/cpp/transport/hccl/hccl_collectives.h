// Runs batches by HCCL's calls.
#pragma once

#include <memory>

#include "transport/device/vendor.h"
#include "transport/hccl/hccl_api.h"

namespace a2a::hccl {

enum class Ownership { ours, callers };

// Makes HCCL's collectives on that device. Requires that it is current. A communicator of ours is destroyed with the
// result, by its close() or abort(), and also when this throws.
std::unique_ptr<device::Collectives> new_collectives(device::Device& device, Comm comm, Rank rank, int size,
                                                     Ownership ownership);

}  // namespace a2a::hccl
