// The accepting side of a handshake: a listening socket, and the connections whose other end has not yet proved that it
// knows the secret. Not public.
#pragma once

#include <deque>

#include "bootstrap/tcp/tcp_socket.h"

namespace a2a {

// An authenticated connection. No frame was sent on it yet.
struct Newcomer {
  Channel channel;
  wire::Introduction who;
  std::string host;
};

// Unauthenticated connections last at most 5 seconds, and there are at most 128: the next one replaces the oldest. A
// connection on which anything but a handshake comes is closed without an answer. No connection influences another's
// handshake otherwise.
class Door {
 public:
  Door(Socket listener, std::string_view secret) : listener_(std::move(listener)), secret_(secret) {}

  Place place() const { return local_place(listener_.fd()); }

  // watch() appends the descriptors for poll(). serve() takes that part of the result, and returns connections that
  // have been authenticated.
  void watch(std::vector<pollfd>& fds) const;
  std::vector<Newcomer> serve(std::span<const pollfd> fds);

  // Describes refused connections, "; refused: 3 connections without the job's secret, 7 that were no rank's"; "" for
  // none.
  std::string account() const;

 private:
  struct Pending {
    Socket socket;
    std::string host;
    Deadline patience;
    std::string heard;      // received, but not complete
    std::string greetings;  // hello and challenge, once both were exchanged
  };

  // Return whether the connection remains unauthenticated. Move it to `admitted` when it is authenticated.
  bool hear(Pending& pending, std::vector<Newcomer>& admitted);
  bool challenge(Pending& pending);
  bool admit(Pending& pending, std::vector<Newcomer>& admitted);
  void let_in();

  Socket listener_;
  std::string secret_;
  std::deque<Pending> pending_;  // oldest first
  uint64_t without_secret_ = 0, nonsense_ = 0;
};

}  // namespace a2a
