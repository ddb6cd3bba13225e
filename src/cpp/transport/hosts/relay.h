// Entries on their way between hosts in one message for each pair of hosts.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "transport/hosts/network.h"
#include "transport/hosts/places.h"
#include "transport/hosts/wire.h"
#include "transport/shm/shm_transport.h"

namespace a2a::hosts {

// For each other host one rank of a host sends, and another one receives: a rank that did both would be what everybody
// waits for. In every operation the ranks of a host hand their entries to the senders, in shared memory; each sends
// what it has for a host to the receiver there; and that one hands the entries on, in shared memory. All hosts choose
// both by the same rule.
//
// A rank may hand over nothing, and tell all ranks of other hosts itself. Where all ranks of a host do, no message is
// sent; the receiver finds out because each of them tells it, too.
//
// The two exchanges in shared memory have room for the most that there can be, so that nothing has to be negotiated.
// All functions want the progress mutex held.
class Relay {
 public:
  using Deliver = std::function<void(uint64_t number, const Entry& entry)>;

  Relay(Rank rank, std::shared_ptr<const Places> places, uint64_t channel, std::shared_ptr<Network> network,
        std::unique_ptr<shm::ShmTransport> gather, std::unique_ptr<shm::ShmTransport> scatter);

  // The entries of this rank for an operation, for all ranks of other hosts or for none. Operations come in order.
  // Payloads stay where they are until the relay has finished it.
  void post(const Signature& signature, const std::vector<Entry>& entries);
  // An operation of which nothing is told.
  void pass(const Signature& signature);
  // A message with a bundle has arrived here.
  void take(uint64_t number, Rank source, std::string message);
  // That rank of another host has told this one itself.
  void note_told(uint64_t number, Rank source);
  // The bundles of an operation that is not told here, with their senders.
  std::map<Rank, std::string> give_back(uint64_t number);
  // Moves what can move. Returns whether anything did. Throws the error of an exchange in shared memory.
  bool advance(const Deliver& deliver);

  bool finished(uint64_t number) const;
  // Whether this rank has done what the others of its host need for the operation.
  bool served(uint64_t number) const;
  // Whether this rank sends or receives for others.
  bool leads() const { return !senders_.mine.hosts.empty() || !receivers_.mine.hosts.empty(); }
  // Who receives, on that host, what comes from this one.
  Rank receiver_on(int host) const { return receiver_of(host, home_); }
  // Whether a bundle is still to come.
  bool waits_for_network() const;
  void fail(const Error& error);
  void leave(Left how) noexcept;

 private:
  // A rank of this host that sends to, or receives from, some of the others.
  struct Leader {
    Rank seat = 0;
    std::vector<int> hosts;
    size_t room = 0;  // bytes for what goes between it and one mate
  };
  struct Leaders {
    std::vector<Leader> all;   // by seat
    std::vector<size_t> with;  // by host: which of them
    Leader mine;               // without hosts when this rank is none
    size_t room = 0;           // of all
  };
  // What has come from other hosts for an operation.
  struct Come {
    std::map<Rank, std::string> bundles;  // by sender
    std::set<Rank> told;                  // these ranks tell everybody themselves
  };
  // The memory of an operation is used again for later ones.
  struct Round {
    Signature signature;
    std::vector<EntryList> to_senders, to_mates;
    std::unique_ptr<char[]> from_mates, from_receivers;
    std::map<Rank, std::string> bundles;  // that the runs of to_mates lie in
    std::shared_ptr<shm::Exchange> gather, scatter;
    bool bundled = false;  // sent on
    bool delivered = false;
  };

  Rank sender_of(int host, int other) const;
  Rank receiver_of(int host, int other) const;
  Leaders leaders(Rank (Relay::*of)(int host, int other) const) const;
  Round& new_round(const Signature& signature);
  std::string_view from_mate(const Round& round, size_t mate) const;
  void send_bundles(Round& round);
  bool complete(uint64_t number) const;
  void start_scatter(Round& round);
  void deliver(Round& round, const Deliver& deliver);
  bool step(Round& round, const Deliver& deliver);
  Error no_sense(const char* what) const;

  const Rank rank_;
  const std::shared_ptr<const Places> places_;
  const int home_;                 // this rank's host
  const std::vector<Rank> mates_;  // of this host
  const uint64_t channel_;
  const std::shared_ptr<Network> network_;
  const std::unique_ptr<shm::ShmTransport> gather_, scatter_;
  const Leaders senders_, receivers_;
  std::list<Round> rounds_, spare_rounds_;
  std::map<uint64_t, Come> come_;  // by number, until handed on
  uint64_t scattered_ = 0;         // the last operation of which that was handed on
};

// The most bytes of a pair that are relayed: what is left of the room for all. 0: nothing is worth relaying.
uint32_t relay_limit(const Places& places);

}  // namespace a2a::hosts
