// Connects each pair of ranks that have met over TCP. Each rank listens at the address at which the others reach
// it, sends them that address over the bootstrap, connects to the lower ranks and accepts the higher ones. Rank 0 only
// accepts; rank 1 waits for rank 0 alone before it accepts, and so on. So no order of arrival can block.

#include "transport/tcp/connect.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <cstring>

#include "bootstrap/allgather_values.h"
#include "bootstrap/tcp/acceptor.h"
#include "bootstrap/tcp/connector.h"
#include "bootstrap/tcp/tcp_bootstrap.h"
#include "runtime/object_bytes.h"
#include "transport/tcp/tcp_network.h"
#include "transport/ucx/choose.h"

namespace a2a::tcp {
namespace {

std::string name_of_rank(Rank rank) { return "rank " + std::to_string(rank); }

// The message of a rank to the others: where it listens.
struct ListenerAddress {
  sa_family_t family = 0;
  in_port_t port = 0;  // in network byte order
  uint32_t pid = 0;
  uint8_t address[16] = {};
  wire::Nonce nonce{};  // random, so that keys made of it are valid once
};

sockaddr_in& v4(SocketAddress& address) { return reinterpret_cast<sockaddr_in&>(address.raw); }
sockaddr_in6& v6(SocketAddress& address) { return reinterpret_cast<sockaddr_in6&>(address.raw); }

void set_port(SocketAddress& address, in_port_t port) {
  (address.raw.ss_family == AF_INET6 ? v6(address).sin6_port : v4(address).sin_port) = port;
}

ListenerAddress listener_address_of(SocketAddress bound) {
  ListenerAddress listener;
  listener.family = bound.raw.ss_family;
  listener.pid = static_cast<uint32_t>(::getpid());
  listener.nonce = new_nonce();
  if (listener.family == AF_INET6) {
    listener.port = v6(bound).sin6_port;
    std::memcpy(listener.address, &v6(bound).sin6_addr, sizeof(in6_addr));
  } else {
    listener.port = v4(bound).sin_port;
    std::memcpy(listener.address, &v4(bound).sin_addr, sizeof(in_addr));
  }
  return listener;
}

// Returns the address at which this rank reaches a listener. `own` is its own address: a link-local address is valid
// with the interface of this end only.
SocketAddress socket_address_of(const ListenerAddress& listener, SocketAddress own) {
  SocketAddress address;
  address.raw.ss_family = listener.family;
  if (listener.family == AF_INET6) {
    address.length = sizeof(sockaddr_in6);
    std::memcpy(&v6(address).sin6_addr, listener.address, sizeof(in6_addr));
    v6(address).sin6_scope_id = v6(own).sin6_scope_id;
  } else {
    address.length = sizeof(sockaddr_in);
    std::memcpy(&v4(address).sin_addr, listener.address, sizeof(in_addr));
  }
  set_port(address, listener.port);
  return address;
}

// Makes the connections of one rank.
class MeshConnector {
 public:
  MeshConnector(MeshArguments arguments, const std::vector<bool>& connected, Deadline deadline)
      : rank_(arguments.rank),
        job_(std::move(arguments.job)),
        own_address_(arguments.own_address),
        key_(arguments.key),
        meanwhile_(std::move(arguments.meanwhile)),
        connected_(connected),
        deadline_(deadline) {}

  ListenerAddress listen() {
    SocketAddress address = own_address_;
    set_port(address, 0);
    listener_ = listen_at({address}, address.host());
    return listener_address_of(local_address(listener_.fd()));
  }

  std::vector<AuthenticatedSocket> connect(const std::vector<ListenerAddress>& listeners) {
    listeners_ = listeners;
    sockets_.resize(listeners.size());
    Sha256 all;
    for (const ListenerAddress& listener : listeners) all.add(object_bytes(listener));
    listeners_digest_ = all.digest();
    Acceptor acceptor(std::move(listener_), acceptor_key(rank_));
    for (Rank peer = 0; peer < rank_; ++peer) {
      if (!connected(peer)) connect_to(peer);
    }
    while (!missing().empty()) {
      if (deadline_.passed()) {
        throw error(Code::timeout, name_of_rank(rank_) + " timed out waiting for a connection of rank " +
                                       list(missing()) + acceptor.refusals());
      }
      accept_higher(acceptor);
      if (!missing().empty()) meanwhile_();  // once complete, the last rank to come may have left
    }
    return std::move(sockets_);
  }

 private:
  Error error(Code code, const std::string& what) const { return {code, "job '" + job_ + "': " + what}; }
  bool connected(Rank peer) const { return connected_[static_cast<size_t>(peer)]; }
  int size() const { return static_cast<int>(listeners_.size()); }
  AuthenticatedSocket& socket(Rank peer) { return sockets_[static_cast<size_t>(peer)]; }
  const ListenerAddress& listener(Rank peer) const { return listeners_[static_cast<size_t>(peer)]; }
  SocketAddress address(Rank peer) const { return socket_address_of(listener(peer), own_address_); }

  // Returns the secret of the handshakes with this rank. The nonces of the listeners make it valid for this network
  // only.
  std::string acceptor_key(Rank rank) const {
    std::string text = "a2a door of " + name_of_rank(rank) + " ";
    text += as_text(listeners_digest_);
    return std::string(as_text(hmac_sha256(as_text(key_), text)));
  }

  std::string who(Rank peer) const {
    return "pid " + std::to_string(listener(peer).pid) + " at " + address(peer).host();
  }

  void connect_to(Rank peer) {
    const ConnectArguments arguments{
        .peer = name_of_rank(peer),
        .address = address(peer).host() + " port " + std::to_string(ntohs(listener(peer).port)),
        .addresses = {address(peer)},
        .secret = acceptor_key(peer),
        .job = job_,
        .rank = rank_,
        .size = size(),
        .meanwhile = meanwhile_};
    Channel channel = connect_authenticated(arguments, deadline_);
    socket(peer).socket = channel.release(socket(peer).early);
    socket(peer).who = who(peer);
  }

  std::vector<Rank> missing() {
    std::vector<Rank> ranks;
    for (Rank peer = rank_ + 1; peer < size(); ++peer) {
      if (!connected(peer) && !socket(peer).socket.open()) ranks.push_back(peer);
    }
    return ranks;
  }

  // Accepts ranks for a short while. A rank that connects again has given up its first connection.
  void accept_higher(Acceptor& acceptor) {
    std::vector<pollfd> fds;
    acceptor.add_to(fds);
    if (poll_slice(fds, deadline_) <= 0) {
      for (pollfd& fd : fds) fd.revents = 0;
    }
    for (AcceptedRank& accepted : acceptor.serve(fds)) {
      const Rank peer = accepted.who.rank;
      if (peer <= rank_ || peer >= size() || accepted.who.size != size()) continue;
      accepted.channel.put(wire::piece(wire::PieceKind::welcome, ""));
      if (!accepted.channel.write() || !accepted.channel.idle()) continue;
      socket(peer).socket = accepted.channel.release(socket(peer).early);
      socket(peer).who = who(peer);
    }
  }

  const Rank rank_;
  const std::string job_;
  const SocketAddress own_address_;
  const Digest key_;
  const std::function<void()> meanwhile_;
  const std::vector<bool>& connected_;
  const Deadline deadline_;
  Socket listener_;
  std::vector<ListenerAddress> listeners_;
  Digest listeners_digest_{};
  std::vector<AuthenticatedSocket> sockets_;
};

}  // namespace

std::vector<AuthenticatedSocket> connect_mesh(Bootstrap& bootstrap, MeshArguments arguments,
                                              const std::vector<bool>& connected, Deadline deadline) {
  MeshConnector connector(std::move(arguments), connected, deadline);
  const auto listen = [&] { return connector.listen(); };
  return connector.connect(allgather_values(bootstrap, deadline, listen, name_of_rank));
}

}  // namespace a2a::tcp

std::shared_ptr<a2a::hosts::Network> a2a::TcpBootstrap::network(Deadline deadline) {
  const tcp::MeshArguments arguments{
      .rank = rank_, .job = job_, .own_address = own_address_, .key = network_key_, .meanwhile = [this] {
        check_others();
      }};
  const std::vector<bool> connected(static_cast<size_t>(size_));
  try {
    if (auto network = ucx::connect_if_chosen(*this, rank_, network_key_, arguments.meanwhile, deadline)) {
      return network;
    }
    return std::make_shared<tcp::TcpNetwork>(rank_, tcp::connect_mesh(*this, arguments, connected, deadline));
  } catch (const Error&) {
    exclusively([] { throw; });  // ends this bootstrap on all ranks, as an error of allgather() has done already
    throw;
  }
}
