// The shared-memory transport: ranks on one host, as processes or as threads.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "a2a/bootstrap.h"
#include "core/transport.h"
#include "transport/shm/exchange.h"
#include "transport/shm/messages/messages.h"
#include "transport/shm/peers/membership.h"

namespace a2a::shm {

class ShmTransport final : public Transport, private Active {
 public:
  // Collective over the bootstrap. Throws as connect_group() does; for `names` see Membership.
  static std::unique_ptr<ShmTransport> connect(Rank rank, int size, Bootstrap& bootstrap, Deadline deadline,
                                               std::vector<Rank> names = {});

  ~ShmTransport() override;

  std::shared_ptr<Work> start(Batch&& batch) override;
  bool folds() const override { return true; }
  size_t most_at_once() const override;
  std::shared_ptr<MessageWork> post(const Message& message) override;
  void abort(std::string_view reason) noexcept override;
  std::optional<Error> pass(const Signature& signature) override;
  std::optional<Error> contradiction(const Signature& signature) override;
  std::optional<Error> refusal(const Signature& next) override;
  std::optional<Error> broken() override;
  bool failed() override;
  std::optional<Error> lost_peer() override;
  bool peer_died() override;
  void fail(const Error& error) noexcept override;
  std::string whereabouts() override;
  void show_in(std::shared_ptr<Status> status) override;

  std::unique_ptr<Transport> derive(std::span<const Rank> members, Bootstrap& bootstrap, Deadline deadline) override;
  std::unique_ptr<Transport> shrink(std::vector<Rank>* members, Deadline deadline) override;
  std::shared_ptr<const void> connections() const override { return local_group_; }
  std::string unreceived() override;
  void leave(Left how, std::string_view why = {}) noexcept override;
  void await_departure(std::chrono::milliseconds patience) override;
  HostFacts facts() override;
  std::vector<WayOfBytes> ways(size_t bytes) override;
  Predecessors conflicting(const Footprint& memory) override;
  std::unique_lock<std::mutex> claim() override;
  std::shared_ptr<Work> start_claimed(Batch&& batch) override { return enqueue_in_order(std::move(batch)); }
  std::shared_ptr<Exposure> expose(const std::byte* data, size_t bytes, DType dtype,
                                   std::span<const int64_t> shape) override;

  int size() const { return membership_.size(); }

  // The next functions are for HostsTransport, which has a ShmTransport for the ranks of its host. derive() requires
  // that the members have exchanged the offsets of their new blocks.
  std::unique_ptr<ShmTransport> derive(std::span<const Rank> members, Membership::NewBlock block,
                                       std::span<const uint64_t> blocks, const Surroundings& surroundings,
                                       std::vector<Rank> names);
  const Surroundings& surroundings() const { return membership_.surroundings(); }
  const std::shared_ptr<ShmProgress>& progress() const { return membership_.shared_progress(); }
  // start() without the wait until peers can see a refusal, and fail(). Both require the progress mutex. The exchange
  // begins when its predecessors are finished; the caller has found them.
  std::shared_ptr<Exchange> enqueue(Batch&& batch, Predecessors predecessors = {});
  void break_with(const Error& error);
  // Both require the progress mutex; this rank need not wait for a peer. given_up() returns the error with which a peer
  // gave up. find_lost() returns an error for a peer that died or left before it finished step `needed`.
  std::optional<Error> given_up();
  // peer_died(). Requires the progress mutex.
  bool has_dead_peer();
  std::optional<Error> find_lost(uint64_t needed);
  const std::optional<Error>& break_error() const { return broken_; }
  Matching& matching() { return matching_; }
  HeldMessages& held() { return held_; }
  // The ranks, by name, for which the oldest operation here waits, and the oldest message; nullptr: there is none. Both
  // require the progress mutex.
  std::vector<Rank> awaited();
  const Message* waiting_message() const { return messages_ && messages_->busy() ? &messages_->oldest() : nullptr; }
  // Whether an operation or a message of this rank is in flight. Requires the progress mutex.
  bool in_flight() const { return !queue_.empty() || (messages_ && messages_->busy()); }
  // Adds the messages of this host that are in flight and conflict. Requires the progress mutex.
  void add_messages(Predecessors& predecessors, const Footprint& memory) const {
    if (messages_) add_conflicting(predecessors, messages_->pending(), memory);
  }
  // Notes that ranks of other hosts may send a message from any rank, too.
  void note_other_hosts() { other_hosts_ = true; }
  // Whether all peers have left. Then all that they have sent is taken first. Requires the progress mutex.
  bool deserted();
  // Starts a message to or from a rank of this host, or from any rank. Throws when it cannot. Requires the progress
  // mutex.
  void start_message(const std::shared_ptr<MessageWork>& work);

 private:
  ShmTransport(Rank rank, Membership::NewBlock block, std::shared_ptr<ShmProgress> progress, Surroundings surroundings,
               std::vector<std::shared_ptr<LocalPeer>> local_peers, std::span<const uint64_t> blocks,
               std::vector<Rank> names = {});

  // Active; the caller holds the mutex
  bool advance() override;
  bool busy() const override { return !queue_.empty() || (messages_ && !broken_ && messages_->active()); }
  void check(Deadline::Clock::time_point now, bool ask_kernel) override;
  void spread() override { membership_.spread(); }
  bool beside_peer() override { return !queue_.empty() && membership_.beside_peer(); }

  std::shared_ptr<Exchange> new_exchange(Batch&& batch);
  std::shared_ptr<Exchange> enqueue_in_order(Batch&& batch);
  void push(const std::shared_ptr<Exchange>& exchange);
  void go_on(const Exchange& latest);
  Predecessors find_conflicting(const Footprint& memory) const;
  template <class Step>
  bool guarded(Step&& step);
  bool post_ready();
  bool step();
  void retire_first();
  void show_waits();
  void check_peer(Rank peer, bool ask_kernel);
  void expire(Exchange& exchange);
  void check_messages(Deadline::Clock::time_point now, bool ask_kernel);
  void check_messages_with(Rank peer, bool ask_kernel);
  void take_what_came();
  void end_all(const Error& error);
  void break_if_aborted();
  std::optional<Error> find_end(const Signature& signature);
  std::optional<Error> find_contradiction(const Signature& signature);
  std::optional<Error> find_refusal(Rank peer, const Signature& signature);
  Error broken_for(const Signature& signature) const;
  void part(Left how, std::string_view why);
  Error left_error(const std::string& what, Rank peer);  // for a rank that has been replaced
  std::string advice();                                  // the end of the sentence for an Error(timeout)
  bool reads_everywhere();  // whether all peers and this rank may read each other's memory with process_vm_readv

  Membership membership_;
  std::shared_ptr<const LocalGroup> local_group_;
  std::deque<std::shared_ptr<Exchange>> queue_;  // in the order of their steps; the first kSlots may be posted
  std::shared_ptr<Exchange> latest_;             // the last one made, which may be over
  Matching matching_;                            // of messages, with their receives
  HeldMessages held_;                            // messages that may not begin yet
  std::optional<Messages> messages_;             // made with the first message
  bool other_hosts_ = false;                     // have ranks of the group
  std::optional<Error> broken_;
  Membership::NewBlock successor_;      // of a shrink() that timed out
  std::optional<uint32_t> rings_seen_;  // rings() at the last find_end()
  // How long an answer of the kernel about the peers is used; each question is a system call per peer.
  static constexpr std::chrono::milliseconds kFresh{5};
  Deadline::Clock::time_point asked_{};  // when find_lost() last asked the kernel
};

template <class Step>
bool ShmTransport::guarded(Step&& step) {
  try {
    return step();
  } catch (const Error& error) {
    break_with(error);
  } catch (const std::exception& error) {  // out of memory, most likely
    break_with(Error(Code::backend, error.what()));
  }
  return true;
}

}  // namespace a2a::shm
