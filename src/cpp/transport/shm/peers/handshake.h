// Connects the ranks of a group, which are on one host.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "a2a/bootstrap.h"
#include "transport/shm/peers/local_peer.h"
#include "transport/shm/peers/shm_progress.h"
#include "transport/shm/policy/machine.h"

namespace a2a::shm {

struct ConnectedGroup {
  std::vector<std::shared_ptr<LocalPeer>> local_peers;  // by rank; nullptr for this rank itself
  std::vector<uint64_t> blocks;                         // offset of each rank's block in its segment
  Surroundings surroundings;
};

// Collective over the bootstrap. Publishes this rank's seat and block, and maps the memory of all peers. Throws
// Error(unsupported) when ranks are on several hosts or belong to other users, Error(peer_lost) when a rank dies
// meanwhile, Error(timeout). For `names` see Membership.
ConnectedGroup connect_group(Rank rank, int size, Bootstrap& bootstrap, ShmProgress& progress, uint64_t block_offset,
                             Deadline deadline, std::span<const Rank> names);

}  // namespace a2a::shm
