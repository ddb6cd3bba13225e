// Facts about the transport of host memory on this machine, for `a2a info` and for messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "a2a/types.h"

namespace a2a {

struct HostFacts {
  int ranks = 1;  // of the group on this host
  int cpus = 1;   // allowed to them together
  bool oversubscribed = false;
  bool cma = false;       // this rank may read the memory of every peer on this host (process_vm_readv)
  int hosts = 1;          // that the group's ranks live on
  uint64_t messages = 0;  // that this rank has sent to other hosts
  // The sizes in bytes from which this rank's host memory takes another way (A2A_SHM_..._MIN in
  // docs/guide/variables.md).
  size_t direct_min = 0, cma_min = 0, stream_min = 0;
};

// The way that bytes of host memory take to a peer, and the reason, in words.
struct WayOfBytes {
  std::string memory;  // their memory: "shared memory", "private memory in huge pages", ...
  std::string way;     // "inlined", "staged", "shared", "pointer", "cma", or the name of a network
  std::string reason;
};

// The stages in which a group runs a collective from so many bytes on, and the reason, in words. The bytes are those of
// the tensor, in reduce_scatter and allgather those of one rank's part.
struct StageChoice {
  std::string collective, stages;
  size_t from = 0;
  std::string reason;
};

// Returns those of a group whose rank r is on host hosts[r], any number, if there are at least two hosts: of each
// collective in the order of `from`. The last one that holds is chosen.
A2A_API std::vector<StageChoice> stage_choices(const std::vector<int>& hosts);

// Returns the CPU time per second that the control groups of this process allow; nothing without a quota. Reads it anew
// at each call.
A2A_API std::optional<double> cpu_quota();

}  // namespace a2a
