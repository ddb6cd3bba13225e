// The meeting in which the endpoints of one list form a group. docs/design/meeting.md has the protocol; tests/model
// checks it. Not public.
//
// Each endpoint dials every other one of its list, and is dialed by it. So each pair has two connections; an endpoint
// sends on the one that it has dialed. The first message is its proposal: the generation, and a hash of the list. When
// an endpoint has the same proposal from all, the connections carry the strings of a bootstrap. An endpoint that gives
// up sends its error on all of its connections before it closes them. A connection that ends without one means that
// the process is dead. All connections end with the meeting, so nothing of a failed one reaches the next.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "a2a/bootstrap.h"
#include "bootstrap/tcp/acceptor.h"
#include "bootstrap/tcp/dial.h"
#include "endpoint/handle.h"
#include "endpoint/proposal.h"
#include "transport/tcp/tcp_network.h"

namespace a2a::endpoint {

// A connection that others have dialed, and that is no member's yet: its proposal has not come, or is for another
// meeting.
struct Guest {
  Channel channel;
  std::string id;  // text_of() of its endpoint
  std::string received;
  std::optional<Proposal> proposal;
};

// A connection of the network to the process of an endpoint.
struct NetworkLink {
  hosts::Process process = 0;
  uint64_t number = 0;  // of the connection: both ends count alike
};

// The last error of a generation, and how often it has failed.
struct Failure {
  Error error;
  uint64_t times = 0;
};

// What an endpoint keeps from one meeting to the next.
struct Standing {
  Handle self;
  std::string secret;
  std::optional<std::string> host;  // Bootstrap::host()
  Acceptor acceptor;
  std::deque<Guest> guests;
  int64_t former = -1;
  Digest former_list{};
  std::set<int64_t> used;               // generations
  std::map<int64_t, Failure> failed{};  // the latest generations that failed, for those who come late
  std::shared_ptr<tcp::TcpNetwork> network;
  std::map<Id, NetworkLink> links;

  uint64_t times_failed(int64_t generation) const {
    const auto found = failed.find(generation);
    return found == failed.end() ? 0 : found->second.times;
  }
};

class Meeting final : public Bootstrap {
 public:
  // members[place] is the endpoint itself.
  Meeting(Standing& standing, std::vector<Handle> members, Rank place, int64_t generation);

  // Waits until all have come with the same list. Throws Error(mismatch), Error(peer_lost), Error(timeout), or the
  // error of one that gives up.
  void gather(Deadline deadline);
  // Sends an error to all that have come, and for a short while to those who still come.
  void give_up(const Error& error) noexcept;
  // Instead of gather(): this endpoint does not take part. Tells so those who come within a short while. The generation
  // may be unknown, and is negative then.
  void decline(const Error& error) noexcept;
  // Returns the ranks whose former group is not that of the lowest rank that had one.
  std::vector<Rank> joined() const;
  const Digest& list() const { return list_; }

  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override;
  void while_meeting() override;
  bool has_network() const override {
    return std::ranges::none_of(members_, [](const Member& m) { return m.handle.on_unix(); });
  }
  std::shared_ptr<hosts::Network> network(Deadline deadline) override;
  std::vector<int> processes() const override;
  std::optional<std::string> host() const override { return standing_.host; }
  bool met_before() const override { return true; }

 private:
  struct Message {
    std::string text;
    std::vector<wire::Piece> pieces;
  };
  struct Member {
    explicit Member(Handle of) : handle(std::move(of)) {}

    Handle handle;
    std::optional<Dial> dial;  // until it is welcomed
    Deadline next_try = Deadline::at({});
    int tries = 0;
    Channel to, from;
    std::deque<Message> unsent;
    size_t sent_pieces = 0;  // of the first
    std::string received;    // of the next message
    uint64_t link = 0;       // Proposal::connection of the proposal to it
    std::optional<Proposal> proposal;
    std::deque<std::string> strings;  // that it has sent, and allgather() has not taken
    bool hung_up = false;             // a connection has ended
    bool told = false;                // it has given up itself, or has got the error with which this endpoint does
  };

  Member& member(Rank rank) { return members_[static_cast<size_t>(rank)]; }
  Member* find(const std::string& id);
  bool is_self(const Member& m) const { return &m == &members_[static_cast<size_t>(place_)]; }
  Rank rank_of(const Member& m) const { return static_cast<Rank>(&m - members_.data()); }
  bool has_come(const Member& m) const { return is_self(m) || (m.proposal && !m.dial); }
  std::string name(const Member& m) const;
  Error error(Code code, const std::string& what) const;

  void forget_old_guests();
  void step(Deadline deadline);
  void look_for_losses();
  void linger(Deadline until);
  void accept(std::vector<AcceptedRank> accepted);
  void call(Member& m);
  void go_on_dialing(Member& m);
  void send(Member& m, std::string text);
  void flush(Member& m);
  void watch(Member& m);
  void receive(Member& m);
  void take(Member& m, const std::string& message);
  bool receive(Guest& guest);
  bool stays(Guest& guest);
  bool concerns(const Guest& guest);
  void remember_failure(int64_t generation);
  bool refuse_if_known(Guest& guest);
  bool misses(const Guest& guest);
  [[noreturn]] void disagree(Guest& guest, const std::string& why);
  void propose(Member& m);
  [[noreturn]] void lost(Member& m);
  std::string absent() const;
  std::string words() const;

  Standing& standing_;
  std::vector<Member> members_;
  const Rank place_;
  const int64_t generation_;
  const uint64_t failed_before_;  // how often
  Digest list_{};
  std::optional<Error> ended_;  // it has given up
  bool declines_ = false;
  bool numbered_anew_ = false;  // rank r is process r of the network
};

}  // namespace a2a::endpoint
