// Entries on their way between hosts in one message for each pair of hosts.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/hosts/messages.h"
#include "transport/hosts/network.h"
#include "transport/hosts/places.h"
#include "transport/shm/shm_transport.h"

namespace a2a::hosts {

// For each other host one rank of a host sends, and another one receives: a rank that did both would be what everybody
// waits for. In every operation the ranks of a host hand their entries to the senders, in shared memory; each sends
// what it has for a host to the receiver there; and that one hands the entries on, in shared memory. All hosts choose
// both by the same rule, and others for each operation.
//
// In an operation in which no rank of a host has something to hand over, because each repeats what was agreed on or
// tells the others itself, the relay of that host does nothing. The ranks find that out in what they tell each other
// anyway. As a rule ranks that need a word need it of each other, so hosts come to the same; where they do not, the
// bundle of one is a stray: its receiver passes the entries on one by one, and answers, since somebody waits for a
// bundle in return. The receiver is there to do so: a rank with anything to relay tells every receiver its facts that
// way (RemoteExchange::begin), so that none can be done with the operation before the bundle has come.
//
// The two exchanges in shared memory have room for the most that there can be, so that nothing has to be negotiated.
// All functions want the progress mutex held.
class Relay {
 public:
  using Deliver = std::function<void(uint64_t number, const Entry& entry)>;
  // Whether any rank of this host has something to hand over in that operation, once this is known.
  using Ask = std::function<std::optional<bool>(uint64_t number)>;
  using Stray = std::function<void(uint64_t number, Rank source, std::string message)>;

  Relay(Rank rank, std::shared_ptr<const Places> places, uint64_t channel, std::shared_ptr<Network> network,
        std::unique_ptr<shm::ShmTransport> gather, std::unique_ptr<shm::ShmTransport> scatter);

  // The entries of this rank for an operation; advance() next. Operations come in order. Payloads stay where they are
  // until the relay has finished it. With `relays` it is known already that this host relays it.
  void post(const Signature& signature, const std::vector<Entry>& entries, bool relays);
  // The same of an operation of which nothing is told.
  void pass(const Signature& signature);
  // Whether bundles of that operation belong to the relay, as far as is known. Otherwise they are strays.
  bool wants(uint64_t number) const;
  // A message with a bundle has arrived here, or with none.
  void take(uint64_t number, Rank source, std::string message);
  // Moves what can move. Returns whether anything did. Throws the error of an exchange in shared memory.
  bool advance(const Deliver& deliver, const Ask& ask, const Stray& stray);

  bool finished(uint64_t number) const;
  // Whether this rank has done what the others of its host need for the operation.
  bool served(uint64_t number) const;
  // Whether this rank sends or receives for others in that operation.
  bool leads(uint64_t number) const;
  // Who receives, on that host, what comes from this one.
  Rank receiver_on(int host, uint64_t number) const { return places_->receiver_of(host, home_, number); }
  // Whether a bundle of another host is all that is still to come: this host's own are sent.
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
  struct Duties {
    Leaders senders, receivers;
  };
  // The memory of an operation is used again for later ones.
  struct Round {
    Signature signature;
    const Duties* duties = nullptr;
    std::vector<EntryList> to_senders, to_mates;
    std::unique_ptr<char[]> from_mates, from_receivers;
    std::map<Rank, std::string> bundles;  // that the runs of to_mates lie in
    std::optional<bool> relays;           // whether this host does
    std::shared_ptr<shm::Exchange> gather, scatter;
    bool bundled = false;  // sent on
    bool delivered = false;
  };

  Leaders leaders(Rank (Places::*of)(int host, int other, uint64_t number) const, uint64_t number) const;
  const Duties& duties(uint64_t number) const { return duties_[number % duties_.size()]; }
  Round& new_round(const Signature& signature);
  bool decide(const Ask& ask, const Stray& stray);
  void start_gather(Round& round);
  void skip(shm::ShmTransport& transport, const Signature& signature);
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
  std::vector<Duties> duties_;  // they go round with the operations
  std::list<Round> rounds_, spare_rounds_;
  std::map<uint64_t, std::map<Rank, std::string>> come_;  // bundles by number and sender, until handed on
  uint64_t decided_ = 0;                                  // the last operation of which it is known whether to relay
};

// The most bytes of a pair that are relayed: what is left of the room for all. 0: nothing is worth relaying.
uint32_t relay_limit(const Places& places);

}  // namespace a2a::hosts
