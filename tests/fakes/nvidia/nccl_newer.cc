// NCCL: what came after 2.18, and is missing in the variant of that version. (ncclAlltoAll is with the other
// operations.)
#include <algorithm>

#include "engine/memory.h"
#include "nvidia/nccl_state.h"

using namespace fake;

ncclResult_t ncclMemAlloc(void** ptr, size_t size) {
  A2A_FAKE_ARGUMENT(ptr != nullptr && size > 0);
  if (current_device() < 0) return nccl_refuse(ncclUnhandledCudaError, "no CUDA context is current");
  *ptr = allocate(current_device(), size);
  return *ptr ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* ptr) {
  return !ptr || release(ptr, true) ? ncclSuccess : nccl_refuse(ncclInvalidArgument, "not from ncclMemAlloc, or freed");
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle) {
  A2A_FAKE_COMM(nccl_find_here);
  A2A_FAKE_ARGUMENT(handle != nullptr);
  std::string why;
  if (!device_region(buff, size, found->device, why)) return nccl_refuse(ncclInvalidArgument, why);
  *handle = buff;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void*) {
  A2A_FAKE_COMM(nccl_find);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId, ncclUniqueId* commIds,
                                      ncclConfig_t* config) {
  A2A_FAKE_ARGUMENT(nId > 0 && nId <= nranks && commIds != nullptr);
  return ncclCommInitRankConfig(newcomm, nranks, commIds[0], myrank, config);
}

// A communicator of those that are not excluded, who alone call it.
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount, ncclComm_t* newcomm,
                            ncclConfig_t* config, int shrinkFlags) {
  A2A_FAKE_ARGUMENT(comm != nullptr && newcomm != nullptr && excludeRanksList != nullptr && excludeRanksCount > 0);
  A2A_FAKE_COMM(nccl_find_here);
  std::string name = found->name + "-shrink" + std::to_string(++found->children);
  std::set<int> excluded(excludeRanksList, excludeRanksList + excludeRanksCount);
  for (const int rank : excluded) {
    A2A_FAKE_ARGUMENT(rank >= 0 && rank < found->size && rank != found->rank);
    name.append(".").append(std::to_string(rank));
  }
  if (shrinkFlags & NCCL_SHRINK_ABORT) {
    found->closing = true;
    found->links->end(false);
  } else {
    found->links->drain();
  }
  const auto before = std::ranges::count_if(excluded, [&](int rank) { return rank < found->rank; });
  return nccl_join(newcomm, found->size - static_cast<int>(excluded.size()), name,
                   found->rank - static_cast<int>(before), config);
}

// Without the hardware for windows the handle is null, which is no error.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t, ncclWindow_t* win, int) {
  A2A_FAKE_COMM(nccl_find_here);
  A2A_FAKE_ARGUMENT(win != nullptr && reinterpret_cast<uintptr_t>(buff) % NCCL_WIN_REQUIRED_ALIGNMENT == 0);
  *win = nullptr;
  return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t) {
  A2A_FAKE_COMM(nccl_find);
  return ncclSuccess;
}

// Ends what is in flight; the communicator lives on to be shrunk, split or destroyed.
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags) {
  A2A_FAKE_ARGUMENT(revokeFlags == 0);
  A2A_FAKE_COMM(nccl_find);
  found->closing = true;
  found->links->end(true);
  return ncclSuccess;
}
