// The network over TCP: a connection between each pair of processes of a group.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/fork_guard.h"
#include "transport/hosts/inbox.h"
#include "transport/hosts/network.h"
#include "transport/tcp/authenticated_socket.h"
#include "transport/tcp/connection.h"

namespace a2a::tcp {

// The destructor closes the connections, so they last as long as the communicators that use them. No thread advances
// them; every call does, for all of them.
class TcpNetwork final : public hosts::Network, public std::enable_shared_from_this<TcpNetwork> {
 public:
  // Takes over the connections; the one at `self` is empty.
  TcpNetwork(hosts::Process self, std::vector<AuthenticatedSocket> sockets);
  // Returns a network of this process alone, which grows.
  static std::shared_ptr<TcpNetwork> alone();
  ~TcpNetwork() override;

  hosts::Process self() const override { return self_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  std::string name() const override { return "TCP"; }
  bool survives_deaths() const override { return true; }
  bool serves_any_thread() const override { return true; }

  // add() takes over a connection to a further process, and returns its number. drop() closes one that no communicator
  // needs any more.
  hosts::Process add(AuthenticatedSocket socket);
  void drop(hosts::Process peer);

  void post(hosts::Process to, std::string bytes) override;
  std::optional<hosts::Message> take(uint64_t channel) override;
  bool flushed() override;
  std::optional<hosts::Loss> lost(hosts::Process) override;
  void close(uint64_t channel) noexcept override;

  uint32_t next_tag(hosts::Process to) override;
  bool fresh(hosts::Process to, uint32_t tag) const override;
  std::unique_ptr<hosts::Transfer> send(hosts::Process to, uint32_t tag, std::span<const Run> runs) override;
  std::unique_ptr<hosts::Transfer> receive(hosts::Process from, uint32_t tag, std::span<const Run> runs) override;
  std::unique_ptr<hosts::Transfer> discard(hosts::Process from, uint32_t tag, size_t bytes) override;
  void advance() override;
  int events() override { return poller_.fd(); }

  uint64_t moved() const override { return moved_.load(std::memory_order_relaxed); }
  uint64_t sent() const override;

 private:
  friend class TcpTransfer;
  friend class Discarded;

  struct PeerState {
    std::unique_ptr<Connection> connection;
    bool watched_for_room = false;
    uint32_t tag = 0;  // the last tag for this process
  };

  void join(hosts::Process peer, AuthenticatedSocket socket);
  PeerState& peer_state(hosts::Process peer) { return peers_[static_cast<size_t>(peer)]; }
  // Both advance connections without waiting: look() those that epoll reports, advance() this one.
  void look();
  void advance(hosts::Process peer);
  void watch(hosts::Process peer);
  std::unique_ptr<hosts::Transfer> begin(hosts::Process peer, uint32_t tag, std::span<const Run> runs,
                                         void (Connection::*begin_flight)(uint32_t, FlightPtr));
  bool done(std::span<const FlightPtr> flights);
  bool arrived(hosts::Process peer, const Flight& flight);
  void abandon(hosts::Process peer, std::span<const FlightPtr> flights);
  void withdraw(hosts::Process peer, uint32_t tag, std::span<const FlightPtr> flights);

  mutable std::mutex mutex_;
  const ForkGuard home_;
  const hosts::Process self_;
  std::vector<PeerState> peers_;  // by process
  Socket poller_;                 // an epoll
  hosts::Inbox inbox_;
  uint64_t sent_ = 0;
  std::atomic<uint64_t> moved_{0};  // bytes of memory
};

}  // namespace a2a::tcp
