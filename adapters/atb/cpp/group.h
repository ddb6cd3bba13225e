// The group of an operation: its ranks, their meeting, and the transport of their bytes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "a2a/atb.h"
#include "a2a/atb/rank_table.h"

namespace a2a::atb {

// The common fields of AllToAllVParam and AllToAllVV2Param.
struct Group {
  int rank = 0, size = 0, root = 0;
  std::string backend;
  HcclComm hccl = nullptr;
  infer::CommMode mode = infer::COMM_MULTI_PROCESS;
  std::string table_file, domain;
  RankTable table;  // no ranks without a file

  // Checks what ATB checks of the group, in ATB's order (docs/frameworks/atb.md), and reads the rank table, which may
  // set rank and size. Throws StatusError.
  template <class Param>
  static Group of(const Param& param);

  // Checks the constraints that this library adds. Call after all of ATB's checks.
  void check_further() const;

  // Returns the text that only ranks of the same meeting share: the job, the domain, the rank table.
  std::string meeting() const;
  // Whether the ranks meet over MPI, whatever moves the bytes.
  bool between_hosts() const { return backend == "mpi" || table.servers > 1; }
};

// Returns the kind of memory of a group's tensors: by its backend; for "auto" by an address in one of them. Streams
// have no meaning on the host. Throws StatusError (ERROR_COMM_EMPTY, Code::unsupported) when this build or this machine
// cannot serve the group. Only this function checks the backend's name.
Memory choose_memory(const Group& group, const void* data);

// Returns the communicator of a group in this process: nullptr before the first Setup, and after it has ended.
std::shared_ptr<Communicator> known_communicator(const Group& group);
// Makes the group's communicator unless there is one. Waits for the other ranks.
std::shared_ptr<Communicator> communicator_of(const Group& group, double timeout_seconds);
// Connects a communicator for tensors like this one; returns its device (0 on the host). Waits for the other ranks the
// first time.
int connect(const Group& group, Communicator& communicator, Memory memory, const void* data, double timeout_seconds);
void set_communicator(const Group& group, std::shared_ptr<Communicator> communicator);

}  // namespace a2a::atb
