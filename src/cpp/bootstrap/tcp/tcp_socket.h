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

// An address to listen at or connect to.
struct SocketAddress {
  sockaddr_storage raw{};
  socklen_t length = 0;
  std::string host() const;  // as numbers
};

// Resolves "host:port", "[IPv6]:port" or ":port", in the resolver's order; ":port" is 127.0.0.1. "@name" is an abstract
// Unix socket, for ranks of one host. Throws Error(invalid_argument) for other texts, and for addresses that mean every
// interface; Error(timeout) when the name is not resolved by the deadline. Looks for signals of this thread meanwhile,
// which may throw Interrupted.
std::vector<SocketAddress> resolve(const std::string& address, Deadline deadline, int least_port = 1);
// The same for a place to listen at: without a port, or with port 0, the kernel picks one.
std::vector<SocketAddress> resolve_to_listen(const std::string& address, Deadline deadline);

// Returns this end's address of a socket. Throws Error(backend).
SocketAddress local_address(int fd);

// Listens at the first candidate that is an address of this host. Throws Error(invalid_argument) when it has none, or
// another process listens there.
Socket listen_at(const std::vector<SocketAddress>& candidates, const std::string& address,
                 const std::string& who = "rank 0");

// Begins to connect; the socket is writable when that has succeeded or failed. Returns an empty socket, with errno,
// when it fails at once.
Socket begin_connecting(const SocketAddress& socket_address);
// Returns 0 when the socket is connected, otherwise the error.
int connecting_failed(const Socket& socket);

// Returns the next waiting connection; an empty socket, with errno, when there is none.
Socket accept_from(const Socket& listener, SocketAddress& from);

// Polls for a short while, not beyond the deadline. Looks for signals of this thread, which may throw Interrupted.
int poll_slice(std::span<pollfd> fds, Deadline deadline);

// Waits for one of the events. Returns whether it came before the deadline. Calls `meanwhile`, if given, in every slice
// of the wait.
bool await(int fd, short events, Deadline until, const std::function<void()>& meanwhile = {});

// Returns a random number of the kernel.
wire::Nonce new_nonce();

// Appends the bytes that have come, at most `most`, to `bytes`. Returns false when the other end is gone.
bool read_some(int fd, size_t most, std::string& bytes);
// Writes the beginning of `bytes`, and removes what was written. Returns false when the other end is gone.
bool write_some(int fd, std::string& bytes);

// An authenticated connection.
class Channel {
 public:
  Channel() = default;
  Channel(Socket socket, const Digest& send_key, const Digest& receive_key)
      : socket_(std::move(socket)), sealer_(send_key), opener_(receive_key) {}

  int fd() const { return socket_.fd(); }
  // Releases the socket; `rest` gets the bytes that have come after the last frame.
  Socket release(std::string& rest) {
    rest = opener_.rest();
    return std::move(socket_);
  }
  bool open() const { return socket_.open(); }
  void close() { socket_ = Socket(); }

  // Returns the next frame that has come. Returns nullopt when more bytes are needed, the other end is gone, or it
  // forged something.
  std::optional<wire::Frame> read();
  bool gone() const { return gone_; }
  bool forged() const { return opener_.forged(); }

  // put() takes a frame to send. Requires idle(): the last frame is written.
  bool idle() const { return outgoing_.empty(); }
  void put(const wire::Piece& piece) { outgoing_ = sealer_.seal(piece); }
  // Writes what the socket takes. Returns false when the other end is gone.
  bool write() { return write_some(fd(), outgoing_); }

 private:
  Socket socket_;
  wire::Sealer sealer_{{}};
  wire::Opener opener_{{}};
  std::string outgoing_;
  bool gone_ = false;
};

}  // namespace a2a
