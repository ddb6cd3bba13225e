// NCCL as a vendor of the device transport.
#pragma once

#include "transport/device/vendor.h"

namespace a2a::nccl {

// Throws Error(unsupported) when the libraries are missing.
device::Vendor& vendor();

}  // namespace a2a::nccl
