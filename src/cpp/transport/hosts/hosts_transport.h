// The transport of ranks on several hosts: shared memory within each of them, a network between them.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/stages/choose.h"
#include "core/transport.h"
#include "transport/hosts/agreement.h"
#include "transport/hosts/cached_matches.h"
#include "transport/hosts/host_map.h"
#include "transport/hosts/network.h"
#include "transport/hosts/operation.h"
#include "transport/hosts/relay.h"
#include "transport/hosts/remote_messages.h"
#include "transport/shm/shm_transport.h"

namespace a2a::hosts {

inline std::string name_of_rank(Rank rank) { return "rank " + std::to_string(rank); }

class HostsTransport final : public Transport, private Active, private Network::User {
 public:
  // Makes the transport of a group with ranks on at least two hosts. Collective over its bootstrap, in one exchange.
  // Rank local_ranks[i] of `base` is the i-th of the group's ranks on this host.
  using Blocks = std::array<shm::Membership::NewBlock, 3>;  // as GroupCard::blocks
  static std::unique_ptr<HostsTransport> make(Rank rank, HostMap map, std::shared_ptr<Network> network,
                                              Bootstrap& bootstrap, shm::ShmTransport& base,
                                              std::span<const Rank> local_ranks, Deadline deadline);
  ~HostsTransport() override;

  std::shared_ptr<Work> start(Batch&& batch) override;
  std::shared_ptr<MessageWork> post(const a2a::Message& message) override;
  Predecessors conflicting(const Footprint& memory) override;
  std::shared_ptr<const Topology> topology() const override { return map_; }
  size_t most_at_once() const override { return a2a::most_at_once(*map_); }
  void abort(std::string_view reason) noexcept override;
  std::optional<Error> pass(const Signature& signature) override;
  std::optional<Error> contradiction(const Signature& signature) override;
  std::optional<Error> refusal(const Signature& next) override;
  std::optional<Error> broken() override;
  bool failed() override;
  std::optional<Error> lost_peer() override;
  bool peer_died() override;
  void fail(const Error& error) noexcept override;
  void show_in(std::shared_ptr<Status> status) override;
  std::string whereabouts() override;
  std::unique_ptr<Transport> derive(std::span<const Rank> members, Bootstrap& bootstrap, Deadline deadline) override;
  std::unique_ptr<Transport> shrink(std::vector<Rank>* members, Deadline deadline) override;
  std::shared_ptr<const void> connections() const override { return local_->connections(); }
  std::string unreceived() override;
  void leave(Left how, std::string_view why = {}) noexcept override;
  void await_departure(std::chrono::milliseconds patience) override;
  HostFacts facts() override;
  std::vector<WayOfBytes> ways(size_t bytes) override;
  std::shared_ptr<Exposure> expose(const std::byte* data, size_t bytes, DType dtype,
                                   std::span<const int64_t> shape) override;

 private:
  // The latest news of a rank of another host.
  struct Last {
    Op op = Op::barrier;
    uint64_t number = 0;
    std::optional<uint64_t> left_after;
    std::optional<Deadline::Clock::time_point> left;  // when that news came
    std::string replaced;                             // why it has left: it was replaced; "": for another reason
  };
  // A message for an operation that this rank has not started, or not posted yet.
  struct Early {
    MessageKind kind = MessageKind::facts;
    Rank source = 0;
    SentFacts facts{};
    std::string text;
  };

  HostsTransport(Rank rank, std::shared_ptr<const HostMap> map, std::shared_ptr<Network> network, uint64_t channel,
                 std::unique_ptr<shm::ShmTransport> local, std::unique_ptr<Relay> relay);

  static std::unique_ptr<HostsTransport> assemble(Rank rank, HostMap map, std::shared_ptr<Network> network,
                                                  shm::ShmTransport& base, std::span<const Rank> local_ranks,
                                                  Blocks blocks, std::span<const GroupCard> cards);
  std::vector<Rank> local_ranks_of(std::span<const Rank> members) const;
  std::shared_ptr<Operation> new_operation(Batch&& batch);

  // Active; the caller holds the mutex
  bool advance() override;
  bool busy() const override { return !queue_.empty() || messages_.active(); }
  void check(Deadline::Clock::time_point now, bool ask_kernel) override;
  bool must_look() override;
  int events() override { return network_->events(); }
  bool in_flight() const { return busy() || local_->in_flight(); }
  Predecessors find_conflicting(const Footprint& memory) const;
  bool must_poll();
  bool wants_look();
  bool advance_messages();
  void check_messages(Deadline::Clock::time_point now);
  void show_waits();
  bool deserted(Deadline::Clock::time_point now);
  bool has_not_polled_for_long();

  void network_ends(const Error& why) noexcept override;

  // Calls body(), and breaks the communicator when that throws.
  template <class Body>
  bool guarded(Body&& body) {
    try {
      return body();
    } catch (const Error& error) {
      break_with(error, true);
    } catch (const std::exception& error) {  // out of memory, most likely
      break_with(Error(Code::backend, error.what()), true);
    }
    return true;
  }
  void poll();
  void handle(const Prefix& prefix, std::string message);
  void handle_entry(uint64_t step, const Entry& entry);
  void handle(Operation& operation, const Entry& entry);
  void handle_unexpected(uint64_t number, Rank source, std::string message);
  void give(Operation& operation, const Early& early);
  Operation* find(uint64_t step);
  bool passed(uint64_t number) const { return std::ranges::binary_search(passed_, number); }
  bool step();
  bool advance_relay();
  void begin_here();  // begins the exchanges on this host that may begin, in order
  bool post_next();   // posts the operations that may be posted, in order; returns whether there were any
  void post(Operation& operation);
  void send_verdict(Operation& operation);
  bool complete(Operation& operation);
  void note_outcome(const std::shared_ptr<Operation>& operation);
  void retire_first();
  bool complete_stage(Operation& operation);
  void send_to_other_hosts(const Prefix& prefix, std::string_view text);
  void send(Rank rank, const Prefix& prefix, std::string_view text);
  void send(uint64_t step, const Entry& entry);
  void expire(const Operation& operation);
  void break_with(const Error& error, bool notify);
  void send_reason();           // sends the error that broke it to the other hosts
  void wait_for_lent_memory();  // waits for memory that the network has
  void receive_aborts();
  std::optional<Error> find_lost(uint64_t number);  // of a rank that died or left before it finished that operation
  // Returns the messages for an operation that this rank does not compare. Requires the mutex.
  std::span<const Early> early_messages(uint64_t number);
  Error broken_for(const Signature& signature) const;
  std::string describe(Rank rank) const;
  bool needs(const Operation& operation, Rank rank) const;
  // Why a rank does not take part.
  struct Absence {
    Code code;
    std::string why;
  };
  // Returns why a rank will not take part in that operation, if that is known.
  std::optional<Absence> missed(Rank rank, uint64_t number) const;

  const Rank rank_;
  const std::shared_ptr<const HostMap> map_;
  const std::shared_ptr<Network> network_;
  const uint64_t channel_;
  const std::unique_ptr<shm::ShmTransport> local_;
  const std::shared_ptr<Progress> progress_;
  const std::unique_ptr<Relay> relay_;  // empty: each rank sends its messages itself
  const bool crowded_;                  // ranks share CPUs, including ranks of other hosts on this machine

  std::deque<std::shared_ptr<Operation>> queue_;  // in the order of their steps
  size_t begun_here_ = 0;                         // the first so many have begun all their exchanges on this host
  std::deque<Signature> passing_here_;            // operations that this host has not passed yet
  Scratch scratch_;
  std::map<uint64_t, std::vector<Early>> early_;  // by step
  std::vector<Last> last_;                        // by rank
  std::vector<CachedMatches> matches_;            // by rank
  bool repeats_ = true;                           // operations may repeat cached matches
  Deadline::Clock::time_point last_polled_{};     // for messages
  Deadline::Clock::time_point last_looked_{};     // for messages or transfers
  uint64_t started_ = 0;                          // the last operation
  uint64_t finished_ = 0;                         // the last finished step among those posted to other hosts
  std::deque<uint64_t> passed_;                   // the latest operations that were not, in order
  static constexpr unsigned kLeastUnpolled = 16;
  unsigned unpolled_ = 0;               // steps since the last look for messages that may come instead of bytes
  unsigned patience_ = kLeastUnpolled;  // after so many steps comes the next look
  RemoteMessages messages_;
  std::unique_ptr<Agreement> agreement_;  // of shrink()
  Blocks successors_;                     // of a shrink() that timed out
  bool shrunk_ = false;
  std::optional<Error> broken_;
  bool died_ = false;  // a process died, as far as this rank knew when the communicator broke
  bool left_ = false;
  std::shared_ptr<Status> status_;  // nullptr: nothing is shown
};

}  // namespace a2a::hosts
