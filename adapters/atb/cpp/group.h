// The group of an operation: who its ranks are, how they meet, and what carries their bytes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "a2a/atb.h"
#include "a2a/atb/rank_table.h"

namespace a2a::atb {

// What AllToAllVParam and AllToAllVV2Param have in common.
struct Group {
  int rank = 0, size = 0, root = 0;
  std::string backend;
  HcclComm hccl = nullptr;
  infer::CommMode mode = infer::COMM_MULTI_PROCESS;
  std::string table_file, domain;
  RankTable table;  // empty without a file

  // Checks what ATB checks of the group, in ATB's order (docs/atb.md), and reads the rank table, which may set rank and
  // size. Throws StatusError.
  template <class Param>
  static Group of(const Param& param);

  // What this library asks beyond that. Called after all of ATB's checks.
  void check_further() const;

  // What ranks that are to meet have in common, and no others: the job, the domain, the rank table.
  std::string meeting() const;
  // Whether the ranks meet over MPI, whatever moves the bytes.
  bool between_hosts() const { return backend == "mpi" || table.servers > 1; }
};

// Where the tensors of a group live, by its backend; for "auto" by an address in one of them. Streams mean nothing on
// the host. Throws StatusError (ERROR_COMM_EMPTY, Code::unsupported) when this build or this machine cannot serve the
// group. The one place that looks at the backend's name.
Memory choose_memory(const Group& group, const void* data);

// The communicator of a group in this process: empty before the first Setup, and after its end.
std::shared_ptr<Communicator> known_communicator(const Group& group);
// Makes the group's communicator unless there is one. Waits for the other ranks.
std::shared_ptr<Communicator> communicator_of(const Group& group, double timeout_seconds);
// Sees to it that a communicator serves tensors like this one; returns its device (0 on the host). Waits for the other
// ranks the first time.
int connect(const Group& group, Communicator& communicator, Memory memory, const void* data, double timeout_seconds);
void set_communicator(const Group& group, std::shared_ptr<Communicator> communicator);

}  // namespace a2a::atb
