// The end of a reduction: what has come from each host is folded.
#pragma once

#include <span>
#include <vector>

#include "core/fold/fold.h"
#include "core/schedule.h"

namespace a2a::hosts {

// First the ranks of each host are folded, in rank order, and what that comes to is rounded to the dtype; then the
// hosts, in their order. An average counts as often as its host has ranks. So the result depends on the placement
// alone, and not on which of the ranks of a host have been folded there, and which here.
class HostFold {
 public:
  // What has come from one host, each as long as the output.
  struct From {
    size_t ranks = 0;               // of the host
    std::vector<std::byte*> parts;  // of each of its ranks, in order; or one, of all together. Memory to write to, too
  };

  HostFold(const Signature& signature, std::span<const Run> output, std::vector<From> hosts);

  // Folds some MiB. Returns whether all is done.
  bool step();

 private:
  void fold(size_t bytes);

  Folder folder_;
  size_t elem_bytes_;
  std::vector<Run> output_;        // what is left of it
  std::vector<From> hosts_;        // by host; what is left of the parts
  std::vector<std::byte> packed_;  // what was folded, where the output has gaps
  std::vector<const std::byte*> all_, of_host_;
  size_t next_ = 0;  // of the output's runs
  bool average_;
};

}  // namespace a2a::hosts
