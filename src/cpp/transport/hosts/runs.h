// Functions on lists of runs.
#pragma once

#include <span>
#include <vector>

#include "core/schedule.h"
#include "transport/hosts/host_map.h"

namespace a2a::hosts {

size_t bytes_of(std::span<const Run> runs);

// Append all these runs, or `bytes` bytes of them from `offset` on, as runs of that peer.
void append_runs(std::vector<Run>& to, Rank peer, std::span<const Run> runs);
void append_piece(std::vector<Run>& to, Rank peer, std::span<const Run> runs, size_t offset, size_t bytes);

// Returns the runs of this host's ranks, by local_rank.
std::vector<Run> runs_here(std::span<const Run> runs, const HostMap& map, Rank rank);

}  // namespace a2a::hosts
