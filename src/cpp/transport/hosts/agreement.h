// Agreement of the surviving ranks of several hosts on their set, by messages. The rules are those of shm/shrink.cc,
// where a comment says why they are safe; a message is what a published word is there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "transport/hosts/host_map.h"
#include "transport/hosts/network.h"

namespace a2a::hosts {

// What a rank says to the others of a new group: the channel, if it is the group's first rank, and its blocks.
struct GroupCard {
  uint64_t channel = 0;
  uint64_t blocks[3] = {};  // offsets, for local, gather, scatter
};

class Agreement {
 public:
  // `channel` is that of the communicator that shrinks; the agreement has one of its own.
  Agreement(Rank rank, std::shared_ptr<const HostMap> map, std::shared_ptr<Network> network, uint64_t channel,
            const GroupCard& card);
  ~Agreement();
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  // Takes what has come, and proposes again if the set has become smaller. Returns whether the set is final.
  bool advance();
  std::vector<Rank> members() const;
  const GroupCard& card_of(Rank member) const { return ranks_[static_cast<size_t>(member)].card; }
  // Names the ranks that have not proposed this rank's set.
  std::string undecided() const;

  // Tells the others that a rank takes no part in any agreement of that communicator.
  static void decline(Rank rank, const HostMap& map, Network& network, uint64_t channel);
  // Discards what others say of a communicator that this rank does not shrink.
  static void forget(Network& network, uint64_t channel) noexcept;

 private:
  struct RankState {
    bool in = true;         // this rank's own proposal
    std::vector<bool> set;  // what that rank has proposed; empty: nothing yet
    bool committed = false;
    bool declined = false;
    GroupCard card;
  };

  RankState& state(Rank rank) { return ranks_[static_cast<size_t>(rank)]; }
  bool is_out(Rank rank) const;
  void take(Rank from, std::string_view text);
  bool agree();
  void propose(bool committed);

  const Rank rank_;
  const std::shared_ptr<const HostMap> map_;
  const std::shared_ptr<Network> network_;
  const uint64_t channel_;
  std::vector<RankState> ranks_;
  bool proposed_ = false, committed_ = false;
};

}  // namespace a2a::hosts
