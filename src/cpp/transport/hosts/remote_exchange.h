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
  RemoteExchange(const Batch& batch, Rank rank, std::shared_ptr<const Places> places, uint64_t channel,
                 Network& network);

  // What to tell the other ranks: an entry for each. Points into this.
  std::vector<Entry> entries();
  // Sends what is told in messages of their own.
  void post_messages();

  // What another rank tells. Called once for each, in any order.
  void hear(const Entry& entry);
  void hear_payload(Rank peer, std::string payload);
  void hear_passed(Rank peer);

  // Moves what can move. Returns whether anything did.
  bool advance();
  // Whether there is nothing left to hear or to move.
  bool finished() const;
  // Whether it waits for something that does not come in an entry.
  bool waits_for_network() const;
  // Whether bytes came straight from a peer's memory.
  bool read_memory() const { return read_memory_; }
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
    std::string outgoing, incoming;  // packed, or on its way in an entry or a message
    bool sends_memory = false;       // to be sent, or being sent
    bool payload_arrived = false;
    bool waits_for_packed = false;
    std::vector<std::unique_ptr<Transfer>> transfers;
  };

  Pair& pair(Rank peer) { return pairs_[static_cast<size_t>(peer)]; }
  Carriage choose(const Pair& pair) const;
  void settle(Pair& pair);
  void agree(Rank peer);
  void begin_memory(Rank peer);
  void begin_sends();
  bool advance(Rank peer);

  const Batch& batch_;
  const Rank rank_;
  const std::shared_ptr<const Places> kept_;
  const Places& places_;
  const uint64_t channel_;
  Network& network_;
  std::vector<Pair> pairs_;  // by rank
  std::vector<Rank> moving_;
  std::deque<Rank> unsent_;  // agreed, their memory waits for its turn
  int sending_ = 0;          // pairs
  int unsettled_ = 0;        // pairs
  int unfinished_ = 0;       // pairs whose memory the network has or will have
  bool read_memory_ = false;
  std::vector<std::string> quarrels_;
};

}  // namespace a2a::hosts
