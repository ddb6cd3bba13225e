// What the files of the NCCL double share.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "engine/communicator.h"
#include "nvidia/nccl_functions.h"

namespace fake {

// A communicator of NCCL: one of the engine, and what is in progress on it.
struct NcclComm {
  NcclComm(int own_rank, int ranks, int on_device, std::string shared_name, bool blocks)
      : rank(own_rank), size(ranks), device(on_device), name(std::move(shared_name)), blocking(blocks) {}

  const int rank, size, device;
  const std::string name;  // the same on all ranks
  const bool blocking;
  std::atomic<bool> aborting{false};
  std::atomic<bool> closing{false};     // finalised, destroyed or revoked: no operation may start
  std::shared_ptr<Communicator> links;  // null until the ranks have met
  // Held by each graph that has an operation of this communicator, which cannot be given up before.
  std::shared_ptr<void> graphs = std::make_shared<int>();
  bool in_a_graph() const { return graphs.use_count() > 1; }

  std::mutex mutex;
  ncclResult_t state = ncclSuccess;  // ncclInProgress while a call of a non-blocking communicator goes on
  std::string text;                  // of the call that failed
  std::set<int> connected;           // peers that messages went to before
  int children = 0;                  // splits and shrinks so far: the next one's name
};

// The version that ncclGetVersion gives; many rules depend on it.
int nccl_version();
// The fields of `config` that this version knows, checked; `blocking` is what it asks for.
ncclResult_t nccl_config(const ncclConfig_t* config, bool& blocking);

ncclResult_t nccl_refuse(ncclResult_t code, const std::string& text);
ncclResult_t nccl_result(const Failure& failure);
// ncclSuccess if the handle is a communicator on which a call may be made now.
ncclResult_t nccl_find(ncclComm_t handle, std::shared_ptr<NcclComm>& comm);
// The same, and the communicator's device has to be current.
ncclResult_t nccl_find_here(ncclComm_t handle, std::shared_ptr<NcclComm>& comm);

using NcclJob = std::function<ncclResult_t()>;
// Does what a call has to wait for: here, or in a thread of its own if the communicator does not block.
ncclResult_t nccl_do(const std::shared_ptr<NcclComm>& comm, NcclJob job);
// Makes a communicator; joins the open group if there is one.
ncclResult_t nccl_join(ncclComm_t* handle, int size, const std::string& name, int rank, const ncclConfig_t* config);
// True if a group is open in this thread, which then does the job at its end.
bool nccl_in_group(const std::shared_ptr<NcclComm>& comm, NcclJob job);

}  // namespace fake

#define A2A_FAKE_ARGUMENT(...) \
  if (!(__VA_ARGS__)) return fake::nccl_refuse(ncclInvalidArgument, "not so: " #__VA_ARGS__)
#define A2A_FAKE_COMM(find)              \
  std::shared_ptr<fake::NcclComm> found; \
  if (const ncclResult_t wrong = fake::find(comm, found)) return wrong
