// The hosts of a group's ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "a2a/bootstrap.h"
#include "core/stages/topology.h"
#include "transport/hosts/network.h"

namespace a2a::hosts {

// The limits in bytes of a pair at which the way between hosts changes. The same on all ranks.
struct Limits {
  // Where hosts have several ranks, up to this many bytes travel with the facts, in one message for each pair of hosts.
  // 0: a message for each pair of ranks (A2A_AGGREGATE_MAX).
  uint32_t aggregate = 8192;
};

// A group whose ranks may be on several hosts. Several hosts may be on one machine: containers with a network each.
struct HostMap : Topology {
  std::vector<int> machine;      // by rank
  std::vector<Process> process;  // by rank
  Limits limits;
  uint32_t relayed = 0;  // the most bytes of a pair that are relayed (hosts/relay.h); 0: nothing is

  Process process_of(Rank rank) const { return process[static_cast<size_t>(rank)]; }
  // Returns the rank's index among the ranks of its host.
  size_t local_rank_of(Rank rank) const;
  // Returns how many ranks, including this one, are on its machine.
  size_t on_machine_of(Rank rank) const;
  // Return the rank of host `home` that sends the relayed entries for host `other` in that operation, and the rank that
  // receives those of `other`.
  Rank sender_of(int home, int other, uint64_t number) const;
  Rank receiver_of(int home, int other, uint64_t number) const;

  // Returns the map of these ranks alone, renumbered.
  HostMap of(std::span<const Rank> members) const;
};

// Returns the name of this host. It contains the network namespace: ranks in different ones cannot reach each other's
// sockets.
std::string own_host();

// Collective over the bootstrap; rank r is process r of its network. Ranks share a host when Bootstrap::host() or their
// A2A_HOSTS says so: a comma-separated list with a name for each rank. By default they do when they have the same
// kernel and network namespace.
HostMap make_host_map(Rank rank, int size, Bootstrap& bootstrap, Deadline deadline);

}  // namespace a2a::hosts
