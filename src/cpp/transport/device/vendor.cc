#include "transport/device/vendor.h"

#include "transport/hccl/hccl_vendor.h"
#include "transport/nccl/nccl_vendor.h"

namespace a2a::device {

Vendor& vendor_of(Memory memory) {
  switch (memory) {
    case Memory::cuda:
      return nccl::vendor();
    case Memory::npu:
      return hccl::vendor();
    default:
      throw Error(Code::unsupported, std::string("no transport for ") + to_string(memory) + " memory in this build");
  }
}

}  // namespace a2a::device
