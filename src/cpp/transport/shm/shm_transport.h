// The shared-memory transport: ranks on one host, as processes or as threads.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "a2a/bootstrap.h"
#include "a2a/transport.h"
#include "transport/shm/exchange.h"
#include "transport/shm/membership.h"

namespace a2a::shm {

class ShmTransport final : public HostTransport, private Active {
 public:
  // Collective: the ranks meet over the bootstrap. See meet() for what it throws.
  static std::unique_ptr<ShmTransport> connect(Rank rank, int size, Bootstrap& bootstrap, Deadline deadline);

  ~ShmTransport() override;

  std::shared_ptr<Work> start(Batch batch, Stream stream) override;
  void abort(std::string_view reason) noexcept override;
  std::optional<Error> pass(const Signature& signature) override;
  std::optional<Error> contradiction(const Signature& signature) override;
  std::optional<Error> refusal(const Signature& next) override;
  std::optional<Error> broken() override;
  std::optional<Error> lost_peer() override;
  void fail(const Error& error) noexcept override;
  std::string whereabouts() override;

  // Collective over the bootstrap of the new group, whose rank i is rank members[i] of this one. Works without meeting
  // again.
  std::unique_ptr<ShmTransport> derive(std::span<const Rank> members, Bootstrap& bootstrap, Deadline deadline);
  // Collective over the ranks that are alive; works on a broken transport too. Fills *members with the survivors.
  std::unique_ptr<ShmTransport> shrink(std::vector<Rank>* members, Deadline deadline);

  // Takes no more part: peers that still need this rank learn that it left. Operations in flight are aborted.
  void leave(Left how) noexcept;
  // Waits a little for the peers to leave too, so that what is shared with them can be given back at once.
  void see_off(std::chrono::milliseconds patience);

  int size() const { return membership_.size(); }
  const Surroundings& surroundings() const { return membership_.surroundings(); }
  bool vm_readv();  // of every peer

 private:
  ShmTransport(Rank rank, Membership::NewBlock block, std::shared_ptr<Progress> progress, Surroundings surroundings,
               std::vector<std::shared_ptr<Neighbour>> neighbours, std::span<const uint64_t> blocks);

  // Active; the mutex is held
  bool advance() override;
  void check(Deadline::Clock::time_point now, bool ask_kernel) override;
  void spread() override { membership_.spread(); }

  bool step();
  void check_peer(Rank peer, bool ask_kernel);
  void expire(Exchange& exchange);
  std::optional<Error> find_contradiction(const Signature& signature);
  std::optional<Error> find_refusal(Rank peer, const Signature& signature);
  Error broken_for(const Signature& signature) const;
  void break_with(const Error& error);
  std::unique_ptr<ShmTransport> derive(std::span<const Rank> members, Membership::NewBlock block,
                                       std::span<const uint64_t> blocks, const Surroundings& surroundings);

  Membership membership_;
  std::deque<std::shared_ptr<Exchange>> queue_;  // in the order of their numbers; the first kSlots may be posted
  std::optional<Error> broken_;
};

}  // namespace a2a::shm
