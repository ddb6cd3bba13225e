// Relays entries between hosts, in one message for each pair of hosts.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/hosts/host_map.h"
#include "transport/hosts/messages.h"
#include "transport/hosts/network.h"
#include "transport/shm/shm_transport.h"

namespace a2a::hosts {

// For each other host, one rank of a host sends and another one receives: one rank with both duties would delay all. In
// every operation the ranks of a host hand their entries to the senders, in shared memory (gather). Each sender sends
// its bundle for a host to the receiver there. The receiver hands the entries on, in shared memory (scatter). All hosts
// choose both ranks by the same rule, and other ranks for each operation.
//
// In an operation in which no rank of a host has entries, because each repeats a cached match or sends its messages
// itself, that host's relay does nothing. Its ranks learn that from the lines that they exchange anyway. Usually two
// ranks that need facts need them from each other, so both hosts relay or neither. Otherwise the bundle of one host is
// unexpected: its receiver passes the entries on one by one, and answers that it has none, because a rank waits for a
// bundle in return. That receiver is still in the operation: a rank with entries to relay sends every receiver its
// facts through the relay (RemoteExchange::begin), so no receiver can finish the operation before the bundle has come.
//
// The two exchanges in shared memory have room for the largest lists, so that nothing has to be negotiated. All
// functions require the progress mutex.
class Relay {
 public:
  using Deliver = std::function<void(uint64_t number, const Entry& entry)>;
  // Returns whether any rank of this host has entries for that operation; nullopt until that is known.
  using Ask = std::function<std::optional<bool>(uint64_t number)>;
  using Unexpected = std::function<void(uint64_t number, Rank source, std::string message)>;

  Relay(Rank rank, std::shared_ptr<const HostMap> map, uint64_t channel, std::shared_ptr<Network> network,
        std::unique_ptr<shm::ShmTransport> gather, std::unique_ptr<shm::ShmTransport> scatter);

  // Takes this rank's entries for an operation; call advance() next. Operations come in order. Payloads must stay valid
  // until the relay has finished it. `relays`: it is known that this host relays it.
  void post(const Signature& signature, const std::vector<Entry>& entries, bool relays);
  // Takes note of an operation without entries.
  void pass(const Signature& signature);
  // Whether the relay expects bundles of that operation, as far as is known. Otherwise they are unexpected.
  bool wants(uint64_t number) const;
  // Takes a bundle or the word that there is none from another host.
  void take(uint64_t number, Rank source, std::string message);
  // Moves whatever can move. Returns whether anything did. Throws the error of an exchange in shared memory.
  bool advance(const Deliver& deliver, const Ask& ask, const Unexpected& unexpected);

  bool finished(uint64_t number) const;
  // Whether this rank has done all that the other ranks of its host need for the operation.
  bool served(uint64_t number) const;
  // Whether this rank sends or receives bundles in that operation.
  bool leads(uint64_t number) const;
  // Returns the rank on that host that receives this host's bundle.
  Rank receiver_on(int host, uint64_t number) const { return map_->receiver_of(host, home_, number); }
  // Whether only another host's bundle is missing: this host's own are sent.
  bool waits_for_network() const;
  void fail(const Error& error);
  void leave(Left how, std::string_view why) noexcept;

 private:
  // A rank of this host that sends bundles to some other hosts, or receives them.
  struct Leader {
    Rank local_rank = 0;
    std::vector<int> hosts;
    size_t room = 0;  // bytes for the entries between it and one neighbour
  };
  struct Leaders {
    std::vector<Leader> all;   // by local_rank
    std::vector<size_t> with;  // by host: the index in `all`
    Leader mine;               // without hosts when this rank is no leader
    size_t room = 0;           // of all leaders
  };
  struct Duties {
    Leaders senders, receivers;
  };
  // The state of one operation. Later ones reuse its memory.
  struct Round {
    Signature signature;
    const Duties* duties = nullptr;
    std::vector<EntryList> to_senders, to_neighbours;
    std::unique_ptr<char[]> from_neighbours, from_receivers;
    std::map<Rank, std::string> bundles;  // to which the runs of to_neighbours refer
    std::optional<bool> relays;           // whether this host relays it
    std::shared_ptr<shm::Exchange> gather, scatter;
    bool bundled = false;  // the bundles were sent
    bool delivered = false;
  };

  Leaders leaders(Rank (HostMap::*of)(int host, int other, uint64_t number) const, uint64_t number) const;
  const Duties& duties(uint64_t number) const { return duties_[number % duties_.size()]; }
  Round& new_round(const Signature& signature);
  bool decide(const Ask& ask, const Unexpected& unexpected);
  void start_gather(Round& round);
  void skip(shm::ShmTransport& transport, const Signature& signature);
  std::string_view from_neighbour(const Round& round, size_t neighbour) const;
  void send_bundles(Round& round);
  bool complete(uint64_t number) const;
  void start_scatter(Round& round);
  void deliver(Round& round, const Deliver& deliver);
  bool step(Round& round, const Deliver& deliver);
  Error no_sense(const char* what) const;

  const Rank rank_;
  const std::shared_ptr<const HostMap> map_;
  const int home_;                      // this rank's host
  const std::vector<Rank> neighbours_;  // of this host
  const uint64_t channel_;
  const std::shared_ptr<Network> network_;
  const std::unique_ptr<shm::ShmTransport> gather_, scatter_;
  std::vector<Duties> duties_;  // by number of the operation, modulo the ranks of this host
  std::list<Round> rounds_, spare_rounds_;
  std::map<uint64_t, std::map<Rank, std::string>> come_;  // bundles by number and sender, until they are handed on
  uint64_t decided_ = 0;                                  // the last operation for which it is known whether to relay
};

// Returns the most bytes of a pair that are relayed, so that all fit into the room. 0: nothing is relayed.
uint32_t relay_limit(const HostMap& map);

}  // namespace a2a::hosts
