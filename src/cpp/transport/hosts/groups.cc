// Makes transports over several hosts, and those of groups of their ranks.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "bootstrap/allgather_values.h"
#include "transport/hosts/hosts_transport.h"

namespace a2a::hosts {
namespace {

// Returns a channel that no other communicator of the job has.
uint64_t new_channel(const shm::ProcessMemory& memory) {
  static std::atomic<uint64_t> made{0};
  return uint64_t{1} << 62 | (((memory.nonce() >> 2) + ++made) & ((uint64_t{1} << 62) - 1));
}

// Allocates a block for each of a rank's groups on its host, of which only the first is needed where nothing is
// relayed.
GroupCard new_card(shm::ProcessMemory& memory, size_t neighbours, bool relayed, HostsTransport::Blocks& blocks) {
  GroupCard card;
  card.channel = new_channel(memory);
  for (size_t i = 0; i < (relayed ? blocks.size() : 1); ++i) {
    blocks[i] = shm::Membership::new_block(memory, static_cast<int>(neighbours));
    card.blocks[i] = memory.arena().offset(blocks[i].get());
  }
  return card;
}

}  // namespace

std::unique_ptr<HostsTransport> HostsTransport::make(Rank rank, HostMap map, std::shared_ptr<Network> network,
                                                     Bootstrap& bootstrap, shm::ShmTransport& base,
                                                     std::span<const Rank> local_ranks, Deadline deadline) {
  map.relayed = relay_limit(map);
  Blocks blocks;
  const size_t neighbours = map.ranks_of(map.host_of(rank)).size();
  const auto make_card = [&] { return new_card(base.progress()->memory(), neighbours, map.relayed > 0, blocks); };
  const std::vector<GroupCard> cards = allgather_values(bootstrap, deadline, make_card, name_of_rank);
  return assemble(rank, std::move(map), std::move(network), base, local_ranks, std::move(blocks), cards);
}

std::unique_ptr<HostsTransport> HostsTransport::assemble(Rank rank, HostMap map, std::shared_ptr<Network> network,
                                                         shm::ShmTransport& base, std::span<const Rank> local_ranks,
                                                         Blocks blocks, std::span<const GroupCard> cards) {
  const auto& neighbours = map.ranks_of(map.host_of(rank));
  shm::Surroundings around = base.surroundings();
  around.ranks = std::max(around.ranks, static_cast<int>(neighbours.size()));
  const auto derived = [&](size_t which) {
    std::vector<uint64_t> offsets;
    for (const Rank neighbour : neighbours) offsets.push_back(cards[static_cast<size_t>(neighbour)].blocks[which]);
    return base.derive(local_ranks, std::move(blocks[which]), offsets, around, neighbours);
  };
  const uint64_t channel = cards[0].channel;
  auto local = derived(0);
  auto where = std::make_shared<const HostMap>(std::move(map));
  std::unique_ptr<Relay> relay;
  if (where->relayed > 0) {
    auto gather = derived(1), scatter = derived(2);
    relay = std::make_unique<Relay>(rank, where, channel, network, std::move(gather), std::move(scatter));
  }
  return std::unique_ptr<HostsTransport>(
      new HostsTransport(rank, std::move(where), std::move(network), channel, std::move(local), std::move(relay)));
}

// Returns the ranks of the base's group that are the members on this host.
std::vector<Rank> HostsTransport::local_ranks_of(std::span<const Rank> members) const {
  std::vector<Rank> local_ranks;
  for (const Rank member : members) {
    if (map_->host_of(member) == map_->host_of(rank_))
      local_ranks.push_back(static_cast<Rank>(map_->local_rank_of(member)));
  }
  return local_ranks;
}

std::unique_ptr<Transport> HostsTransport::derive(std::span<const Rank> members, Bootstrap& bootstrap,
                                                  Deadline deadline) {
  HostMap part = map_->of(members);
  const auto mine = static_cast<Rank>(std::ranges::find(members, rank_) - members.begin());
  const std::vector<Rank> local_ranks = local_ranks_of(members);
  if (part.hosts() == 1) return local_->derive(local_ranks, bootstrap, deadline);
  return make(mine, std::move(part), network_, bootstrap, *local_, local_ranks, deadline);
}

// A rank that gives up at its deadline stays proposed, with its blocks, so both are kept for the next attempt.
std::unique_ptr<Transport> HostsTransport::shrink(std::vector<Rank>* members, Deadline deadline) {
  if (!network_->survives_deaths()) {
    throw Error(Code::unsupported, "shrink: " + network_->name() +
                                       " does not go on after the death of a rank; connect the hosts over TCP instead "
                                       "(A2A_BOOTSTRAP=tcp://host:port)");
  }
  if (shrunk_) throw Error(Code::aborted, "shrink: this communicator has been replaced by a smaller one already");
  abort("it shrinks");  // ends what is in flight, here and at the peers
  if (agreement_ == nullptr) {
    const size_t neighbours = map_->ranks_of(map_->host_of(rank_)).size();
    const GroupCard card = new_card(local_->progress()->memory(), neighbours, true, successors_);
    agreement_ = std::make_unique<Agreement>(rank_, map_, network_, channel_, card);
  }
  while (!agreement_->advance()) {
    SignalWatch::look();
    if (deadline.passed()) {
      throw Error(Code::timeout, "shrink: timeout on " + name_of_rank(rank_) + ", which still waits for " +
                                     agreement_->undecided() + ": shrink again when it goes on or has ended");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  shrunk_ = true;
  *members = agreement_->members();
  HostMap part = map_->of(*members);
  part.relayed = relay_limit(part);
  std::vector<GroupCard> cards;
  for (const Rank member : *members) cards.push_back(agreement_->card_of(member));
  const auto mine = static_cast<Rank>(std::ranges::find(*members, rank_) - members->begin());
  const std::vector<Rank> local_ranks = local_ranks_of(*members);
  if (part.hosts() > 1) {
    return assemble(mine, std::move(part), network_, *local_, local_ranks, std::move(successors_), cards);
  }
  std::vector<uint64_t> offsets;
  for (const GroupCard& card : cards) offsets.push_back(card.blocks[0]);
  return local_->derive(local_ranks, std::move(successors_[0]), offsets, local_->surroundings(), {});
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
