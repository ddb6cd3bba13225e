// Where strangers knock: rank 0's listening socket, and the connections whose other end has not proved yet that it
// knows the secret. Not public.
#pragma once

#include <deque>

#include "bootstrap/tcp/tcp_socket.h"

namespace a2a {

// Somebody who knows the secret. Nothing has been said to it yet.
struct Newcomer {
  Channel channel;
  wire::Introduction who;
  std::string host;
};

// Strangers wait at most 5 seconds, and at most 128 of them at once: the next one takes the place of the oldest.
// Whoever says anything but a handshake is hung up on without a word. None of that depends on what others say or do not
// say.
class Door {
 public:
  Door(Socket listener, std::string_view secret) : listener_(std::move(listener)), secret_(secret) {}

  Place place() const { return local_place(listener_.fd()); }

  // Appends what poll() has to watch; `fds` is what came of that part.
  void watch(std::vector<pollfd>& fds) const;
  std::vector<Newcomer> serve(std::span<const pollfd> fds);

  // "; refused: 3 connections without the job's secret, 7 that said something else", or nothing if there were none.
  std::string account() const;

 private:
  struct Stranger {
    Socket socket;
    std::string host;
    Deadline patience;
    std::string heard;      // and not understood yet
    std::string greetings;  // hello and challenge, once they are exchanged
  };

  // Whether the stranger may stay; a Newcomer when it is one no more.
  bool hear(Stranger& stranger, std::vector<Newcomer>& admitted);
  bool challenge(Stranger& stranger);
  bool admit(Stranger& stranger, std::vector<Newcomer>& admitted);
  void let_in();

  Socket listener_;
  std::string secret_;
  std::deque<Stranger> strangers_;  // the oldest first
  uint64_t without_secret_ = 0, nonsense_ = 0;
};

}  // namespace a2a
