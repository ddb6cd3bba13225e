// The accepting side of a handshake: a listening socket, and the connections whose other end has not yet proved that it
// knows the secret. Not public.
#pragma once

#include <deque>

#include "bootstrap/tcp/tcp_socket.h"

namespace a2a {

// A rank whose connection is authenticated. No frame was sent on it yet.
struct AcceptedRank {
  Channel channel;
  wire::Introduction who;
  std::string host;
};

// Unauthenticated connections last at most 5 seconds, and there are at most 128: the next one replaces the oldest. A
// connection on which anything but a handshake comes is closed without an answer. No connection influences another's
// handshake otherwise.
class Acceptor {
 public:
  Acceptor(Socket listener, std::string_view secret) : listener_(std::move(listener)), secret_(secret) {}

  SocketAddress address() const { return local_address(listener_.fd()); }

  // add_to() appends the descriptors for poll(). serve() takes that part of the result, and returns the ranks that have
  // been authenticated.
  void add_to(std::vector<pollfd>& fds) const;
  std::vector<AcceptedRank> serve(std::span<const pollfd> fds);

  // Counts the refused connections, for the texts of errors: "; refused: 3 connections without the job's secret, 7 that
  // were no rank's". Returns "" when there are none.
  std::string refusals() const;

 private:
  struct Pending {
    Socket socket;
    std::string host;
    Deadline deadline;
    std::string received;   // the beginning of a hello or of a proof
    std::string greetings;  // hello and challenge, once both were exchanged
  };

  // Each returns whether the connection remains unauthenticated. authenticate() moves it to `accepted` otherwise.
  bool receive(Pending& pending, std::vector<AcceptedRank>& accepted);
  bool challenge(Pending& pending);
  bool authenticate(Pending& pending, std::vector<AcceptedRank>& accepted);
  void accept_waiting();

  Socket listener_;
  std::string secret_;
  std::deque<Pending> pending_;  // oldest first
  uint64_t without_secret_ = 0, no_ranks_ = 0;
};

}  // namespace a2a
