// What the files of the HCCL double share.
#pragma once

#include <memory>
#include <string>

#include "ascend/hccl_functions.h"
#include "engine/communicator.h"

// Functions of libhcomm.so that libhccl.so calls, where the two are apart.
#define A2A_FAKE_SHARED __attribute__((visibility("default")))

namespace fake {

// The calls whose messages only fit messages of the same call.
enum class HcclCall : uint32_t {
  alltoallv,
  alltoall,
  alltoallvc,
  allgather,
  allgatherv,
  barrier,
  send_recv,
  batch,
  broadcast,
  scatter,
  allreduce,  // from here on with the operation of the reduction: see with()
  reduce_scatter = allreduce + 4,
  reduce = reduce_scatter + 4,
  end = reduce + 4,
};
constexpr HcclCall with(HcclCall call, HcclReduceOp op) {
  return static_cast<HcclCall>(static_cast<uint32_t>(call) + static_cast<uint32_t>(op));
}

// Where an operation goes, once all rules about that hold.
struct HcclTarget {
  std::shared_ptr<Communicator> comm;
  std::shared_ptr<Stream> stream;
  aclrtStream handle;
};

// Sets this thread's error text and returns the code.
A2A_FAKE_SHARED HcclResult hccl_refuse(HcclResult code, const std::string& text);
// HCCL_SUCCESS if this thread has a device, the communicator and the stream exist, and belong to one device.
A2A_FAKE_SHARED HcclResult hccl_target(HcclComm comm, aclrtStream stream, HcclTarget& target);
// Counts the operation, logs it, and puts it on its stream; messages of HcclSend and HcclRecv wait for HcclGroupEnd.
A2A_FAKE_SHARED HcclResult hccl_submit(const HcclTarget& target, HcclCall call, Operation operation);

// Bytes of an element, or 0 for a type that is not supported.
A2A_FAKE_SHARED size_t hccl_element_bytes(HcclDataType type);

}  // namespace fake

#define A2A_FAKE_PTR(pointer) \
  if (!(pointer)) return fake::hccl_refuse(HCCL_E_PTR, #pointer " is null")
