// Messages (send, recv) between this rank and those of other hosts. Few bytes travel with the announcement (eager).
// More go from memory to memory, when the receiver has a matching receive (rendezvous).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/message.h"
#include "transport/hosts/host_map.h"
#include "transport/hosts/network.h"

namespace a2a::hosts {

enum class Form : uint32_t;

// All functions require the progress mutex. The caller breaks the communicator when one throws.
class RemoteMessages {
 public:
  // Posts a MessageKind::sent or answered with `rest` after its prefix.
  using Tell = std::function<void(Rank to, bool answers, uint64_t number, const std::string& rest)>;

  RemoteMessages(Rank rank, const HostMap& map, std::shared_ptr<Network> network, Matching& matching,
                 HeldMessages& held, Tell tell);
  ~RemoteMessages();

  // Starts a message to or from a rank of another host, or from any rank. The caller posts a receive from any rank
  // itself.
  void start(const std::shared_ptr<MessageWork>& work);
  // Take a message or an answer of another rank. Return false when it is invalid.
  bool handle_sent(Rank source, uint64_t number, std::string_view rest);
  bool handle_answer(Rank source, uint64_t number, std::string_view rest);
  // Finishes the messages whose transfers are done. Returns whether there were any.
  bool advance();

  // Whether a message is unfinished.
  bool active() const;
  // The first unfinished message, or nullptr.
  const a2a::Message* oldest() const;
  const std::vector<std::shared_ptr<MessageWork>>& pending() const { return pending_; }
  bool moves() const { return !moving_.empty(); }
  std::shared_ptr<MessageWork> expired(Deadline::Clock::time_point now) const;
  // Returns the first unfinished message that needs that rank, or nullptr. `anybody`: also one from any rank.
  std::shared_ptr<MessageWork> needing(Rank rank, bool anybody) const;
  void fail_all(const Error& error);

 private:
  struct Arriving;
  // Memory that the network uses.
  struct LentMemory {
    Run run;  // the network refers to it
    std::unique_ptr<Transfer> transfer;
  };
  struct Moving {
    std::shared_ptr<MessageWork> work;
    Rank source;
    std::shared_ptr<LentMemory> lent;
  };
  // A send whose receiver has not asked for the bytes, or not said that it has them.
  struct Unanswered {
    std::shared_ptr<MessageWork> work;
    uint32_t tag;
    Form form;
  };
  // The messages between this rank and one other.
  struct Lane {
    uint64_t sent = 0, received_facts = 0;      // messages
    uint64_t whole = 0, met = 0;                // sent with their announcement, and known to be received
    uint64_t matched = 0;                       // of the other rank's
    std::map<uint64_t, std::string> early;      // that overtook earlier ones, by number
    std::map<uint64_t, Unanswered> unanswered;  // by number
    std::optional<Error> complaint;             // a receiver's refusal of a message that was finished here
  };

  void begin(const std::shared_ptr<MessageWork>& work);
  void send(const std::shared_ptr<MessageWork>& work);
  void count_matched(Rank source);
  bool take(Rank source, uint64_t number, std::string_view rest);
  void meet(Arriving& in);
  void move(const std::shared_ptr<MessageWork>& work, Rank peer, Rank source, uint32_t tag);

  const Rank rank_;
  const HostMap& map_;
  const std::shared_ptr<Network> network_;
  Matching& matching_;
  HeldMessages& held_;
  const Tell tell_;
  std::vector<Lane> lanes_;  // by rank
  std::vector<std::shared_ptr<MessageWork>> pending_;
  std::vector<Moving> moving_;
  std::vector<std::shared_ptr<MessageWork>> leaving_;  // sends whose bytes the network has copied, but not sent
};

}  // namespace a2a::hosts
