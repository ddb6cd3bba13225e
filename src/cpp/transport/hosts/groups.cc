// Makes transports over several hosts, and those of groups of their ranks.
#include <algorithm>
#include <atomic>

#include "bootstrap/allgather_values.h"
#include "transport/hosts/hosts_transport.h"

namespace a2a::hosts {
namespace {

// Returns a channel that no other communicator of the job has.
uint64_t new_channel(Endpoint self) {
  static std::atomic<uint32_t> made{0};
  return uint64_t{1} << 62 | static_cast<uint64_t>(self) << 32 | ++made;
}

// The message of each rank to the others of a new group.
struct GroupCard {
  uint64_t channel = 0;
  uint64_t blocks[3] = {};  // offsets, for local, gather, scatter
};

}  // namespace

std::unique_ptr<HostsTransport> HostsTransport::make(Rank rank, HostMap map, std::shared_ptr<Network> network,
                                                     Bootstrap& bootstrap, shm::ShmTransport& base,
                                                     std::span<const Rank> local_ranks, Deadline deadline) {
  map.relayed = relay_limit(map);
  const bool relayed = map.relayed > 0;
  const auto& neighbours = map.ranks_of(map.host_of(rank));
  auto& memory = base.progress()->memory();
  shm::Membership::NewBlock blocks[3];
  const auto make_card = [&] {
    GroupCard card;
    card.channel = new_channel(network->self());
    for (size_t i = 0; i < (relayed ? 3 : 1); ++i) {
      blocks[i] = shm::Membership::new_block(memory, static_cast<int>(neighbours.size()));
      card.blocks[i] = memory.arena().offset(blocks[i].get());
    }
    return card;
  };
  const std::vector<GroupCard> cards = allgather_values(bootstrap, deadline, make_card, name_of_rank);
  const auto derived = [&](size_t which) {
    std::vector<uint64_t> offsets;
    for (const Rank neighbour : neighbours) offsets.push_back(cards[static_cast<size_t>(neighbour)].blocks[which]);
    return base.derive(local_ranks, std::move(blocks[which]), offsets, base.surroundings(), neighbours);
  };
  const uint64_t channel = cards[0].channel;
  auto local = derived(0);
  auto where = std::make_shared<const HostMap>(std::move(map));
  std::unique_ptr<Relay> relay;
  if (relayed) {
    auto gather = derived(1), scatter = derived(2);
    relay = std::make_unique<Relay>(rank, where, channel, network, std::move(gather), std::move(scatter));
  }
  return std::unique_ptr<HostsTransport>(
      new HostsTransport(rank, std::move(where), std::move(network), channel, std::move(local), std::move(relay)));
}

std::unique_ptr<Transport> HostsTransport::derive(std::span<const Rank> members, Bootstrap& bootstrap,
                                                  Deadline deadline) {
  HostMap part = map_->of(members);
  const auto mine = static_cast<Rank>(std::ranges::find(members, rank_) - members.begin());
  std::vector<Rank> local_ranks;  // of the members on this host
  for (const Rank member : members) {
    if (map_->host_of(member) == map_->host_of(rank_))
      local_ranks.push_back(static_cast<Rank>(map_->local_rank_of(member)));
  }
  if (part.hosts() == 1) return local_->derive(local_ranks, bootstrap, deadline);
  return make(mine, std::move(part), network_, bootstrap, *local_, local_ranks, deadline);
}

std::unique_ptr<Transport> HostsTransport::shrink(std::vector<Rank>*, Deadline) {
  throw Error(Code::unsupported, "shrink: the ranks of this communicator live on " + std::to_string(map_->hosts()) +
                                     " hosts, and it works within one");
}

HostFacts HostsTransport::facts() {
  HostFacts facts = local_->facts();
  facts.hosts = map_->hosts();
  facts.messages = network_->sent();
  return facts;
}

std::vector<WayOfBytes> HostsTransport::ways(size_t bytes) {
  std::vector<WayOfBytes> ways = local_->ways(bytes);
  ways.push_back({"memory of another host", network_->name(), "the ranks live on several hosts"});
  return ways;
}

std::shared_ptr<Exposure> HostsTransport::expose(const std::byte*, size_t, DType, std::span<const int64_t>) {
  throw Error(Code::unsupported,
              "ranks of this group live on several hosts, and cannot look at each other's memory; use allgather(), "
              "or a group of one host's ranks");
}

}  // namespace a2a::hosts
