// What a call of NCCL leaves in the open group of its thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "nvidia/nccl_state.h"

namespace fake {

// One call inside a group.
struct NcclEnqueued {
  std::shared_ptr<Stream> stream;
  const char* name;
  bool collective;
  std::vector<Part> sends, recvs;
  std::function<void()> then;  // when all has arrived
};

// The rules that all calls have in common. `fill` adds the messages.
ncclResult_t nccl_call(const char* name, ncclComm_t handle, ncclDataType_t type, cudaStream_t stream, bool collective,
                       const std::function<ncclResult_t(const NcclComm&, NcclEnqueued&)>& fill);

}  // namespace fake
