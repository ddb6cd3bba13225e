// What one operation has to do with the ranks of other hosts.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/schedule.h"
#include "transport/hosts/agreements.h"
#include "transport/hosts/messages.h"
#include "transport/hosts/network.h"
#include "transport/hosts/places.h"

namespace a2a::hosts {

// Life of a pair: this rank tells the facts, and with them the bytes if they are few; it hears the other's; both come
// to the same conclusion; then the rest of the bytes moves. So no byte of a pair that disagrees is written, and memory
// is only given to the network when the other end takes it.
//
// Facts that both have agreed on before are *repeated*, without a word: this rank sends its bytes with the tag of that
// agreement and waits for the other's. Bytes with that tag say that the other one has the same facts as then. If it
// says facts instead, because it has others or does not know yet that they agree, this rank answers with its own, and
// with which bytes are on their way; the other end takes them or throws them away. Two ranks that repeat different
// agreements would both wait, so one that has waited for a while says its facts.
class RemoteExchange {
 public:
  // The batch outlives this.
  RemoteExchange(const Batch& batch, Rank rank, std::shared_ptr<const Places> places, Network& network);

  // What ranks have told before this one began.
  using Earlier = std::map<Rank, Told>;
  // Begins with what is repeated, if there is something to repeat, and returns what to tell the other ranks: an entry
  // for each of the rest. They point into this and the batch. Called before all that follows.
  std::vector<Entry> begin(const std::vector<Agreements>* agreed, const Earlier& earlier);
  // Whether this rank tells each of them itself, not through a relay, which would be a detour for messages of this
  // size: they go along.
  bool tells_itself() const { return tells_itself_; }

  // Whether all that goes from memory to memory is so little that the network has sent it when it is begun: larger
  // messages ask for a hand.
  bool sent_at_once() const;

  // What to tell after all, because the others take so long: they may repeat something else.
  std::vector<Entry> speak_up(Deadline::Clock::time_point now);

  // What another rank tells, in any order. Returns what to answer, if anything.
  std::optional<Entry> hear(const Entry& entry);
  void hear_passed(Rank peer);

  // After Network::advance(): takes note of what is done, and goes on with what waits for it. Returns whether there was
  // anything.
  bool advance();
  // Whether there is nothing left to hear or to move.
  bool finished() const;
  // Whether it waits for something that does not come in an entry.
  bool waits_for_network() const;
  // When all has come: until then no peer can have given up and let its caller write to memory that bytes came from. Of
  // a peer that repeats this is known: it began after it had what this rank sent in an operation before, and one that
  // gives up keeps memory that is on its way for kSilence.
  Deadline::Clock::time_point good_until() const { return good_until_; }
  // Whether somebody is still to tell something. Those that may repeat facts are not counted.
  bool listens() const { return unsettled_ > repeating_; }
  bool arrived(Rank peer) const;
  bool waits_for(Rank peer) const;

  // That rank has left, or takes no part: it will not throw away what this one repeated.
  void part_from(Rank peer) noexcept;
  // Gives up.
  void abandon() noexcept;
  // Whether the network has no memory of the batch any more. After a failure it may keep some for a while.
  bool let_go() noexcept;

  const std::vector<std::string>& quarrels() const { return quarrels_; }
  // When it is finished: what later operations may repeat.
  void note_agreements(std::vector<Agreements>& agreed) const;

 private:
  struct Pair {
    bool remote = false;
    bool repeats = false;  // and it is not known yet whether the other end does
    bool told = false;     // only of those that repeat
    bool heard = false;
    bool settled = false;  // nothing more to come from there
    bool agreed = false;
    Told mine{}, theirs{};
    std::span<const Run> sends, recvs;
    std::string outgoing;  // several runs in one piece
    std::unique_ptr<std::byte[]> incoming, withdrawn_incoming;
    Run outgoing_run, incoming_run;                           // those pieces
    bool moves = false;                                       // among moving_
    bool sends_memory = false;                                // to be sent, or being sent
    bool waits_to_send = false;                               // among unsent_
    std::unique_ptr<Transfer> sending, receiving, withdrawn;  // empty: there is none, or it is done
    Deadline::Clock::time_point since{};                      // of those that repeat: see Agreement
  };

  static bool all_received(Pair& pair);
  static bool all_done(Pair& pair);
  static void abandon(Pair& pair) noexcept;
  Pair& pair(Rank peer) { return pairs_[static_cast<size_t>(peer)]; }
  const Pair& pair(Rank peer) const { return pairs_[static_cast<size_t>(peer)]; }
  using Known = std::vector<const Agreement*>;  // by rank: what is repeated with it
  Known known(const std::vector<Agreements>& agreed, const Earlier& earlier) const;
  bool prefers_to_tell(const Known& known) const;
  void tell_receivers(Known& known) const;
  Carriage choose(const Pair& pair) const;
  Carriage choose_for_repeats(const Pair& pair) const;
  void repeat(Rank peer, const Agreement& agreement);
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
  const std::shared_ptr<const Places> kept_;
  const Places& places_;
  Network& network_;
  std::vector<Pair> pairs_;   // by rank
  std::vector<Rank> moving_;  // agreed, and the network has or will have their memory
  std::vector<Rank> unsent_;  // of them those whose memory waits for its turn, from next_unsent_ on
  size_t next_unsent_ = 0;
  std::vector<Rank> parted_;  // the network may still have memory that was to go there
  bool tells_itself_ = false;
  std::optional<Deadline::Clock::time_point> speaks_up_;  // then, unless all have come
  int sending_ = 0;                                       // pairs
  int unsettled_ = 0;                                     // pairs
  int repeating_ = 0;  // of them those of which it is not known whether the other end repeats, too
  Deadline::Clock::time_point began_{};
  Deadline::Clock::time_point good_until_ = Deadline::Clock::time_point::max();
  std::vector<std::string> quarrels_;
};

}  // namespace a2a::hosts
