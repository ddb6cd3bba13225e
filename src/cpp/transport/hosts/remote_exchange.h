// What one operation has to do with the ranks of other hosts.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "a2a/schedule.h"
#include "transport/hosts/network.h"
#include "transport/hosts/places.h"
#include "transport/hosts/wire.h"

namespace a2a::hosts {

// Life of a pair: this rank tells the facts, and with them the bytes if they are few; it hears the other's; both come
// to the same conclusion; then the rest of the bytes moves. So no byte of a pair that disagrees is written, and memory
// is only given to the network when the other end takes it.
class RemoteExchange {
 public:
  // The batch outlives this.
  RemoteExchange(const Batch& batch, Rank rank, std::shared_ptr<const Places> places, Network& network);

  // What to tell the other ranks: an entry for each. Points into this and the batch.
  std::vector<Entry> entries();
  // Whether this rank tells each of them itself, not through a relay, which would be a detour for messages of this
  // size: they go along.
  bool tells_itself() const { return tells_itself_; }

  // What another rank tells. Called once for each, in any order.
  void hear(const Entry& entry);
  void hear_passed(Rank peer);

  // Moves what can move. Returns whether anything did.
  bool advance();
  // Whether there is nothing left to hear or to move.
  bool finished() const;
  // Whether it waits for something that does not come in an entry.
  bool waits_for_network() const;
  // Whether bytes came straight from a peer's memory.
  bool read_memory() const { return read_memory_; }
  // Whether it is still to hear from somebody.
  bool listens() const { return unsettled_ > 0; }
  bool arrived(Rank peer) const;
  bool waits_for(Rank peer) const;

  // Gives up. The network may keep memory of the batch: see let_go().
  void abandon() noexcept;
  // Whether the network has no memory of the batch any more.
  bool let_go();

  const std::vector<std::string>& quarrels() const { return quarrels_; }

 private:
  struct Pair {
    bool remote = false;
    bool heard = false;
    bool settled = false;  // nothing more to come from there
    shm::Head mine{}, theirs{};
    std::span<const Run> sends, recvs;
    std::string outgoing, incoming;  // several runs in one piece
    bool waits_for_packed = false;
    bool sends_memory = false;   // to be sent, or being sent
    bool waits_to_send = false;  // among unsent_
    std::vector<std::unique_ptr<Transfer>> transfers;
  };

  Pair& pair(Rank peer) { return pairs_[static_cast<size_t>(peer)]; }
  bool prefers_to_tell() const;
  Carriage choose(const Pair& pair) const;
  void settle(Pair& pair);
  void agree(const Entry& entry);
  void begin_memory(Rank peer);
  void begin_sends();
  bool advance(Rank peer);

  const Batch& batch_;
  const Rank rank_;
  const std::shared_ptr<const Places> kept_;
  const Places& places_;
  Network& network_;
  std::vector<Pair> pairs_;  // by rank
  std::deque<Rank> moving_;  // agreed, and the network has or will have their memory
  std::deque<Rank> unsent_;  // of them those whose memory waits for its turn
  bool tells_itself_ = false;
  int sending_ = 0;    // pairs
  int unsettled_ = 0;  // pairs
  bool read_memory_ = false;
  std::vector<std::string> quarrels_;
};

}  // namespace a2a::hosts
