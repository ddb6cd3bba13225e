// One stage of an operation, as a rank of several hosts runs it.
#pragma once

#include <memory>
#include <vector>

#include "core/schedule.h"
#include "core/scratch.h"
#include "transport/hosts/host_fold.h"
#include "transport/hosts/host_map.h"

namespace a2a::hosts {

// The exchange of this host's ranks and the one between hosts go on at the same time. In a fold, both bring parts,
// which are folded at the end.
struct StageRun {
  bool on_host = false, on_network = false;
  bool as_batch = false;  // the exchange between hosts is the batch itself, and `between` only has its stage
  Batch here;     // between the ranks of this host, by local rank; its `stage` counts those with such an exchange
  Batch between;  // with ranks of other hosts; its `stage` counts those with such an exchange
  std::shared_ptr<std::byte[]> memory;  // for parts that are folded
  std::vector<HostFold> folds;          // of each output
};

// Returns how the batch runs. Throws std::bad_alloc.
std::vector<StageRun> stage_runs(const Batch& batch, Rank rank, const HostMap& map, Scratch& scratch);

}  // namespace a2a::hosts
