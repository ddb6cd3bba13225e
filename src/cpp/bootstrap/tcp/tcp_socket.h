// TCP sockets that never block, and frames over them. Not public.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/sockets.h"
#include "bootstrap/tcp/frames.h"

namespace a2a {

// Where to listen or connect.
struct Place {
  sockaddr_storage raw{};
  socklen_t length = 0;
  std::string host() const;  // as numbers
};

// What "host:port", "[IPv6]:port" or ":port" stands for, in the resolver's order; ":port" is 127.0.0.1. "@name" is an
// abstract Unix socket, for ranks of one host. Throws Error(invalid_argument) for what is no such thing, and for
// addresses that mean every interface; Error(timeout) when a name is not looked up by the deadline. Looks for signals
// of this thread meanwhile, which may throw Interrupted.
std::vector<Place> resolve(const std::string& address, Deadline deadline);

// This end's address of a socket. Throws Error(backend).
Place local_place(int fd);

// Listens at the first of these that this host has. Throws Error(invalid_argument) when there is none, or when somebody
// else listens there.
Socket listen_at(const std::vector<Place>& places, const std::string& address);

// Begins to connect; the socket can be written once that is decided. Not open, with errno, when it is at once.
Socket begin_connecting(const Place& place);
// Whether that connected: 0, or why not.
int connecting_failed(const Socket& socket);

// The next connection that waits. Not open, with errno, when there is none.
Socket accept_from(const Socket& listener, Place& from);

// poll() for a short while and no longer than the deadline; looks for signals of this thread, which may throw
// Interrupted.
int poll_slice(std::span<pollfd> fds, Deadline deadline);

// Whether one of the events came in time. `meanwhile`, where there is one, is called for every slice of the wait.
bool await(int fd, short events, Deadline until, const std::function<void()>& meanwhile = {});

// From the kernel.
wire::Nonce new_nonce();

// Reads what is there, at most `most` bytes, onto the end of `bytes`. False when the other end is gone.
bool read_some(int fd, size_t most, std::string& bytes);
// Writes the beginning of `bytes` and removes it there. False when the other end is gone.
bool write_some(int fd, std::string& bytes);

// A connection whose two ends know each other.
class Channel {
 public:
  Channel() = default;
  Channel(Socket socket, const Digest& send_key, const Digest& receive_key)
      : socket_(std::move(socket)), sealer_(send_key), opener_(receive_key) {}

  int fd() const { return socket_.fd(); }
  // The bare connection; `rest` are the bytes that have come after the last frame.
  Socket release(std::string& rest) {
    rest = opener_.rest();
    return std::move(socket_);
  }
  bool open() const { return socket_.open(); }
  void close() { socket_ = Socket(); }

  // The next frame, of what has come. None when more is needed, when the other end is gone, or when it forged
  // something.
  std::optional<wire::Frame> read();
  bool gone() const { return gone_; }
  bool forged() const { return opener_.forged(); }

  // Takes a frame to send once the last one is written.
  bool idle() const { return outgoing_.empty(); }
  void put(const wire::Piece& piece) { outgoing_ = sealer_.seal(piece); }
  // Writes what the socket takes. False when the other end is gone.
  bool write() { return write_some(fd(), outgoing_); }

 private:
  Socket socket_;
  wire::Sealer sealer_{{}};
  wire::Opener opener_{{}};
  std::string outgoing_;
  bool gone_ = false;
};

}  // namespace a2a
