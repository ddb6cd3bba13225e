// Messages (send, recv) between this rank and those of other hosts. Few bytes travel with the word of them; more go
// from memory to memory, once the receiver has said that it wants them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/message.h"
#include "transport/hosts/network.h"
#include "transport/hosts/places.h"

namespace a2a::hosts {

// Everything wants the progress mutex held. What throws breaks the communicator.
class RemoteMessages {
 public:
  // Posts what begins after the prefix of a MessageKind::sent or answered.
  using Tell = std::function<void(Rank to, bool answers, uint64_t number, const std::string& rest)>;

  RemoteMessages(Rank rank, const Places& places, std::shared_ptr<Network> network, Matching& matching, Tell tell);
  ~RemoteMessages();

  // A message to or from a rank of another host, or from any rank: its receive is posted by the caller then.
  void start(const std::shared_ptr<MessageWork>& work);
  // What another rank has told. False: it makes no sense.
  bool hear_sent(Rank source, uint64_t number, std::string_view rest);
  bool hear_answer(Rank source, uint64_t number, std::string_view rest);
  // Looks which transfers are done. Returns whether any is.
  bool advance();

  // Whether there is anything to do, or to wait for.
  bool active() const;
  bool moves() const { return !moving_.empty(); }
  std::shared_ptr<MessageWork> expired(Deadline::Clock::time_point now) const;
  // The first one that needs that rank.
  std::shared_ptr<MessageWork> needing(Rank rank) const;
  void fail_all(const Error& error);

 private:
  struct Arriving;
  // Memory that the network has.
  struct Loan {
    Run run;  // where the network finds it
    std::unique_ptr<Transfer> transfer;
  };
  struct Moving {
    std::shared_ptr<MessageWork> work;
    Rank source;
    std::shared_ptr<Loan> loan;
  };
  // A send whose receiver has not said that it wants the bytes.
  struct Unanswered {
    std::shared_ptr<MessageWork> work;
    uint32_t tag;
  };
  // With one rank.
  struct Lane {
    uint64_t sent = 0, heard = 0;               // messages
    std::map<uint64_t, std::string> early;      // that overtook others, by number
    std::map<uint64_t, Unanswered> unanswered;  // by number
    std::optional<Error> complaint;             // about a message that this rank had done with
  };

  void send(const std::shared_ptr<MessageWork>& work);
  bool take(Rank source, uint64_t number, std::string_view rest);
  void meet(Arriving& in);
  void move(const std::shared_ptr<MessageWork>& work, Rank peer, Rank source, uint32_t tag);

  const Rank rank_;
  const Places& places_;
  const std::shared_ptr<Network> network_;
  Matching& matching_;
  const Tell tell_;
  std::vector<Lane> lanes_;  // by rank
  std::vector<std::shared_ptr<MessageWork>> pending_;
  std::vector<Moving> moving_;
  std::vector<std::shared_ptr<MessageWork>> leaving_;  // sends whose bytes the network has copied, but not sent
};

}  // namespace a2a::hosts
