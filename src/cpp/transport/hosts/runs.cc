#include "transport/hosts/runs.h"

#include <algorithm>
#include <numeric>

namespace a2a::hosts {

size_t bytes_of(std::span<const Run> runs) {
  return std::accumulate(runs.begin(), runs.end(), size_t{0},
                         [](size_t sum, const Run& run) { return sum + run.bytes; });
}

void append_runs(std::vector<Run>& to, Rank peer, std::span<const Run> runs) {
  for (Run run : runs) {
    run.peer = peer;
    to.push_back(run);
  }
}

void append_piece(std::vector<Run>& to, Rank peer, std::span<const Run> runs, size_t offset, size_t bytes) {
  for (const Run& run : runs) {
    const size_t skipped = std::min(offset, run.bytes), taken = std::min(bytes, run.bytes - skipped);
    if (taken > 0) {
      to.push_back(run.part(skipped, taken));
      to.back().peer = peer;
    }
    offset -= skipped;
    bytes -= taken;
  }
}

std::vector<Run> runs_here(std::span<const Run> runs, const HostMap& map, Rank rank) {
  const auto& neighbours = map.ranks_of(map.host_of(rank));
  std::vector<Run> here;
  here.reserve(runs.size());
  for (size_t local_rank = 0; local_rank < neighbours.size(); ++local_rank) {
    append_runs(here, static_cast<Rank>(local_rank), runs_with(runs, neighbours[local_rank]));
  }
  return here;
}

}  // namespace a2a::hosts
