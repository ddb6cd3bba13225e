// The end of a reduction: folds the parts that have come from each host.
#pragma once

#include <span>
#include <vector>

#include "core/fold/fold.h"
#include "core/schedule.h"

namespace a2a::hosts {

// Folds the ranks of each host in rank order, and rounds the result to the dtype; then folds the hosts in their order.
// In an average a host counts as often as it has ranks. So the result depends on the placement only, and not on whether
// the ranks of a host were folded there or here.
class HostFold {
 public:
  // The parts that have come from one host, each as long as the output.
  struct From {
    size_t ranks = 0;               // of the host
    std::vector<std::byte*> parts;  // of each of its ranks, in order, or one of all together. They are overwritten
  };

  HostFold(const Signature& signature, std::span<const Run> output, std::vector<From> hosts);

  // Folds one step. Returns whether all is done.
  bool step();

 private:
  void fold(size_t bytes);

  Folder folder_;
  size_t elem_bytes_;
  std::vector<Run> output_;        // the rest of it
  std::vector<From> hosts_;        // by host; the rest of the parts
  std::vector<std::byte> packed_;  // folded bytes, where the output has gaps
  std::vector<const std::byte*> all_, of_host_;
  size_t next_ = 0;  // of the output's runs
  bool average_;
};

}  // namespace a2a::hosts
