// The part of one operation that concerns ranks of other hosts.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/schedule.h"
#include "transport/hosts/cached_matches.h"
#include "transport/hosts/host_map.h"
#include "transport/hosts/messages.h"
#include "transport/hosts/network.h"

namespace a2a::hosts {

// The steps of a pair: this rank sends its facts, and the bytes with them if they are few (eager). It receives the
// other's facts. Both come to the same conclusion. Then the rest of the bytes moves (rendezvous). So no byte of a pair
// that disagrees is written, and the network gets memory only when the other end takes the bytes.
//
// Facts on which both have agreed before are *repeated*, without a message: this rank sends its bytes with the tag of
// that match, and waits for the other's. Bytes with that tag prove that the other rank has the same facts as then.
// If the other rank sends facts instead, because its facts differ or it does not know yet that they agree, this rank
// answers with its own facts, and says which bytes are under way; the other end takes or discards those. Two ranks that
// repeat different cached matches would both wait, so a rank that has waited for a while sends its facts.
class RemoteExchange {
 public:
  // The batch must outlive this.
  RemoteExchange(const Batch& batch, Rank rank, std::shared_ptr<const HostMap> map, Network& network);

  // The facts that ranks have sent before this one began.
  using Earlier = std::map<Rank, SentFacts>;
  // Begins the exchange, and the repetition of cached matches. Returns the entries for the ranks with which it repeats
  // nothing; they refer to this object and the batch. Call before all the following.
  std::vector<Entry> begin(const std::vector<CachedMatches>* agreed, const Earlier& earlier);
  // Whether this rank sends the entries itself, rather than through a relay: entries of this size carry the bytes, and
  // a relay would be a detour.
  bool sends_itself() const { return sends_itself_; }

  // Whether the bytes of all transfers are so few that the network sends them at once. Longer transfers need calls of
  // advance().
  bool sent_at_once() const;

  // Returns facts to send after all, because the others take so long: they may repeat another match.
  std::vector<Entry> send_facts_late(Deadline::Clock::time_point now);

  // Takes the facts of another rank, in any order. Returns an answer, if one is needed.
  std::optional<Entry> handle(const Entry& entry);
  void handle_passed(Rank peer);

  // Notes the transfers that are done, and begins those that waited for them. Returns whether there were any. Call
  // after Network::advance().
  bool advance();
  // Whether no facts or bytes are missing.
  bool finished() const;
  // Whether it waits for transfers.
  bool waits_for_network() const;
  // Requires that all bytes have come. Until this time no peer can have given up and let its caller write to the memory
  // that the bytes came from. That holds for peers that repeat: such a peer began after it had received this rank's
  // bytes of an earlier operation, and a peer that gives up keeps memory that is under way for kRepeatTimeout.
  Deadline::Clock::time_point good_until() const { return good_until_; }
  // Whether facts of a rank are missing. Ranks that may repeat are not counted.
  bool expects_facts() const { return unsettled_ > repeating_; }
  bool arrived(Rank peer) const;
  bool waits_for(Rank peer) const;

  // Abandons the transfers with a rank that has left or takes no part: it will not discard the bytes that this rank
  // repeated.
  void part_from(Rank peer) noexcept;
  // Abandons all transfers.
  void abandon() noexcept;
  // Whether the network no longer uses memory of the batch. After a failure it may do so for a while.
  bool let_go() noexcept;

  const std::vector<std::string>& disagreements() const { return disagreements_; }
  // Notes the cached matches that later operations may repeat. Requires finished().
  void note_matches(std::vector<CachedMatches>& agreed) const;

 private:
  struct Pair {
    bool remote = false;
    bool repeats = false;     // and it is not known yet whether the other end does
    bool facts_sent = false;  // of pairs that repeat: the facts were sent after all
    bool received_facts = false;
    bool settled = false;  // no more facts come from there
    bool agreed = false;
    SentFacts mine{}, theirs{};
    std::span<const Run> sends, recvs;
    std::string outgoing;  // several runs packed into one
    std::unique_ptr<std::byte[]> incoming, withdrawn_incoming;
    Run outgoing_run, incoming_run;                           // of the packed bytes
    bool moves = false;                                       // it is in moving_
    bool sends_memory = false;                                // its bytes are to be sent, or under way
    bool waits_to_send = false;                               // it is in unsent_
    std::unique_ptr<Transfer> sending, receiving, withdrawn;  // empty: none, or done
    Deadline::Clock::time_point since{};                      // of pairs that repeat: see CachedMatch
  };

  static bool all_received(Pair& pair);
  static bool all_done(Pair& pair);
  static void abandon(Pair& pair) noexcept;
  Pair& pair(Rank peer) { return pairs_[static_cast<size_t>(peer)]; }
  const Pair& pair(Rank peer) const { return pairs_[static_cast<size_t>(peer)]; }
  using Known = std::vector<const CachedMatch*>;  // by rank: the match to repeat, or nullptr
  Known known(const std::vector<CachedMatches>& agreed, const Earlier& earlier) const;
  bool prefers_to_send(const Known& known) const;
  void send_to_receivers(Known& known) const;
  Delivery choose(const Pair& pair) const;
  Delivery choose_for_repeats(const Pair& pair) const;
  void choose_turns();
  void repeat(Rank peer, const CachedMatch& match);
  Entry entry_for(Rank peer);
  void settle(Pair& pair);
  bool end_repeat(Pair& pair);
  void conclude(const Entry& entry);
  void agree(const Entry& entry);
  void withdraw(Pair& pair);
  void keep_unsent(Rank peer);
  void move(Rank peer);
  void begin_receive(Rank peer);
  void begin_send(Rank peer);
  void begin_sends();
  void start_send(Rank peer);
  void discard(const Entry& entry);
  bool advance(Rank peer);

  const Batch& batch_;
  const Rank rank_;
  const std::shared_ptr<const HostMap> kept_;
  const HostMap& map_;
  Network& network_;
  std::vector<Pair> pairs_;   // by rank
  std::vector<Rank> moving_;  // with transfers, which the network has or will get
  std::vector<int> turns_;    // by rank: its place in the order of sends; empty where all are sent at once
  std::vector<Rank> unsent_;  // those whose send waits for its turn, in that order, from next_unsent_ on
  size_t next_unsent_ = 0;
  std::vector<Rank> parted_;  // whose abandoned transfers the network may still have
  bool sends_itself_ = false;
  std::optional<Deadline::Clock::time_point> late_at_;  // the time to send facts to ranks that repeat
  int sending_ = 0;                                     // pairs
  int unsettled_ = 0;                                   // pairs
  int repeating_ = 0;  // of them those of which it is not known whether the other end repeats
  Deadline::Clock::time_point began_{};
  Deadline::Clock::time_point good_until_ = Deadline::Clock::time_point::max();
  std::vector<std::string> disagreements_;
};

}  // namespace a2a::hosts
