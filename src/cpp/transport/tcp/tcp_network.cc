#include "transport/tcp/tcp_network.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace a2a::tcp {

using hosts::Message;
using hosts::Process;
using hosts::Transfer;

class TcpTransfer final : public Transfer {
 public:
  TcpTransfer(std::shared_ptr<TcpNetwork> network, Process peer, uint32_t tag, std::vector<FlightPtr> flights)
      : network_(std::move(network)), peer_(peer), tag_(tag), flights_(std::move(flights)) {}
  ~TcpTransfer() override { abandon(); }

  bool done() override { return network_->done(flights_); }
  void abandon() noexcept override { network_->abandon(peer_, flights_); }
  void withdraw() noexcept override { network_->withdraw(peer_, tag_, flights_); }

 private:
  std::shared_ptr<TcpNetwork> network_;
  Process peer_;
  uint32_t tag_;
  std::vector<FlightPtr> flights_;  // in the order of their transfer
};

// A receive whose bytes are discarded. Done when all of them have come.
class Discarded final : public Transfer {
 public:
  Discarded(std::shared_ptr<TcpNetwork> network, Process peer, FlightPtr flight)
      : network_(std::move(network)), peer_(peer), flight_(std::move(flight)) {}

  bool done() override { return given_up_ || network_->arrived(peer_, *flight_); }
  void abandon() noexcept override { given_up_ = true; }
  void withdraw() noexcept override { given_up_ = true; }

 private:
  std::shared_ptr<TcpNetwork> network_;
  Process peer_;
  FlightPtr flight_;
  bool given_up_ = false;
};

TcpNetwork::TcpNetwork(Process self, std::vector<AuthenticatedSocket> sockets)
    : self_(self), peers_(sockets.size()), poller_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!poller_.open()) socket_failure("epoll_create1");
  for (Process peer = 0; peer < size(); ++peer) {
    if (peer != self_) join(peer, std::move(sockets[static_cast<size_t>(peer)]));
  }
  close_in_child(poller_.fd());
  for (Process peer = 0; peer < size(); ++peer) {
    if (peer != self_) advance(peer);  // the kernel does not report bytes that were read already
  }
}

TcpNetwork::~TcpNetwork() {
  if (home_.inherited()) {
    for (PeerState& there : peers_) {
      if (there.connection != nullptr) there.connection->forget();
    }
    poller_.release();
    return;
  }
  for (PeerState& there : peers_) {
    if (there.connection == nullptr || !there.connection->open()) continue;
    keep_in_child(there.connection->fd());
    there.connection->leave();
  }
  keep_in_child(poller_.fd());
}

void TcpNetwork::join(Process peer, AuthenticatedSocket socket) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = static_cast<uint32_t>(peer);
  if (::epoll_ctl(poller_.fd(), EPOLL_CTL_ADD, socket.socket.fd(), &event) != 0) socket_failure("epoll_ctl");
  close_in_child(socket.socket.fd());
  peer_state(peer).connection =
      std::make_unique<Connection>(std::move(socket.socket), std::move(socket.who), std::move(socket.early));
}

std::shared_ptr<TcpNetwork> TcpNetwork::alone() {
  return std::make_shared<TcpNetwork>(0, std::vector<AuthenticatedSocket>(1));
}

Process TcpNetwork::add(AuthenticatedSocket socket) {
  const std::lock_guard lock(mutex_);
  const auto peer = static_cast<Process>(peers_.size());
  peers_.emplace_back();
  join(peer, std::move(socket));
  advance(peer);
  return peer;
}

void TcpNetwork::drop(Process peer) {
  const std::lock_guard lock(mutex_);
  Connection& connection = *peer_state(peer).connection;
  if (!connection.open()) return;
  keep_in_child(connection.fd());
  connection.leave();
}

// ---- progress -----------------------------------------------------------------------------------------------------

void TcpNetwork::look() {
  std::array<epoll_event, 64> events;
  const int n = ::epoll_wait(poller_.fd(), events.data(), events.size(), 0);
  if (n < 0 && errno != EINTR) socket_failure("epoll_wait");  // the program has closed it
  for (int i = 0; i < n; ++i) advance(static_cast<Process>(events[static_cast<size_t>(i)].data.u32));
}

void TcpNetwork::advance(Process peer) {
  Connection& connection = *peer_state(peer).connection;
  if (!connection.open()) return;
  const int fd = connection.fd();
  const uint64_t before = connection.moved();
  connection.write();
  connection.read([&](std::string message) { inbox_.deliver({peer, std::move(message)}); });
  moved_.fetch_add(connection.moved() - before, std::memory_order_relaxed);
  if (connection.open()) return watch(peer);
  keep_in_child(fd);
}

// Has epoll report room in the socket only while frames wait for it.
void TcpNetwork::watch(Process peer) {
  PeerState& there = peer_state(peer);
  if (!there.connection->open() || there.watched_for_room == there.connection->has_more()) return;
  there.watched_for_room = there.connection->has_more();
  epoll_event event{};
  event.events = EPOLLIN | (there.watched_for_room ? EPOLLOUT : 0u);
  event.data.u32 = static_cast<uint32_t>(peer);
  if (::epoll_ctl(poller_.fd(), EPOLL_CTL_MOD, there.connection->fd(), &event) != 0) socket_failure("epoll_ctl");
}

// ---- messages -----------------------------------------------------------------------------------------------------

void TcpNetwork::post(Process to, std::string bytes) {
  if (bytes.size() > kMostMessage) throw Error(Code::backend, "a message of more than 1 GiB");
  const std::lock_guard lock(mutex_);
  if (to == self_) return inbox_.deliver({self_, std::move(bytes)});
  ++sent_;
  peer_state(to).connection->post(std::move(bytes));
  watch(to);
}

std::optional<Message> TcpNetwork::take(uint64_t channel) {
  const std::lock_guard lock(mutex_);
  auto message = inbox_.take(channel);
  if (message) return message;
  look();
  return inbox_.take(channel);
}

bool TcpNetwork::flushed() {
  const std::lock_guard lock(mutex_);
  bool all = true;
  for (Process peer = 0; peer < size(); ++peer) {
    if (peer == self_ || peer_state(peer).connection->flushed()) continue;
    advance(peer);
    all &= peer_state(peer).connection->flushed();
  }
  return all;
}

std::optional<hosts::Loss> TcpNetwork::lost(Process peer) {
  const std::lock_guard lock(mutex_);
  if (peer == self_) return std::nullopt;
  if (inbox_.overrun(peer)) return hosts::Loss{{}, "it sent more messages than anybody here takes"};
  return peer_state(peer).connection->loss();
}

void TcpNetwork::close(uint64_t channel) noexcept {
  const std::lock_guard lock(mutex_);
  inbox_.close(channel);
}

// ---- memory -------------------------------------------------------------------------------------------------------

uint32_t TcpNetwork::next_tag(Process to) {
  const std::lock_guard lock(mutex_);
  return ++peer_state(to).tag;
}

bool TcpNetwork::fresh(Process to, uint32_t tag) const {
  const std::lock_guard lock(mutex_);
  return peers_[static_cast<size_t>(to)].tag - tag < UINT32_MAX / 2;
}

std::unique_ptr<Transfer> TcpNetwork::send(Process to, uint32_t tag, std::span<const Run> runs) {
  const std::lock_guard lock(mutex_);
  sent_ += runs.size();
  return begin(to, tag, runs, &Connection::send);
}

std::unique_ptr<Transfer> TcpNetwork::receive(Process from, uint32_t tag, std::span<const Run> runs) {
  const std::lock_guard lock(mutex_);
  return begin(from, tag, runs, &Connection::receive);
}

std::unique_ptr<Transfer> TcpNetwork::begin(Process peer, uint32_t tag, std::span<const Run> runs,
                                            void (Connection::*begin_flight)(uint32_t, FlightPtr)) {
  std::vector<FlightPtr> flights;
  for (const Run& run : runs) {
    flights.push_back(std::make_shared<Flight>(Flight{run.data, run.bytes}));
    (*peer_state(peer).connection.*begin_flight)(tag, flights.back());
  }
  watch(peer);
  return std::make_unique<TcpTransfer>(shared_from_this(), peer, tag, std::move(flights));
}

std::unique_ptr<Transfer> TcpNetwork::discard(Process from, uint32_t tag, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto flight = std::make_shared<Flight>(Flight{nullptr, bytes, true});
  peer_state(from).connection->receive(tag, flight);
  watch(from);
  return std::make_unique<Discarded>(shared_from_this(), from, flight);
}

bool TcpNetwork::done(std::span<const FlightPtr> flights) {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(flights, &Flight::done, &FlightPtr::operator*);
}

bool TcpNetwork::arrived(Process peer, const Flight& flight) {
  const std::lock_guard lock(mutex_);
  return flight.left == 0 || !peer_state(peer).connection->open();
}

void TcpNetwork::abandon(Process peer, std::span<const FlightPtr> flights) {
  if (home_.inherited()) return;  // a forked child; the mutex may be held for ever
  const std::lock_guard lock(mutex_);
  for (const FlightPtr& flight : flights) {
    if (!flight->done()) peer_state(peer).connection->abandon(*flight);
  }
}

void TcpNetwork::withdraw(Process peer, uint32_t tag, std::span<const FlightPtr> flights) {
  if (home_.inherited()) return;
  const std::lock_guard lock(mutex_);
  for (const FlightPtr& flight : flights) flight->abandoned = true;
  peer_state(peer).connection->withdraw(tag);
  watch(peer);
}

void TcpNetwork::advance() {
  const std::lock_guard lock(mutex_);
  look();
}

uint64_t TcpNetwork::sent() const {
  const std::lock_guard lock(mutex_);
  return sent_;
}

}  // namespace a2a::tcp
