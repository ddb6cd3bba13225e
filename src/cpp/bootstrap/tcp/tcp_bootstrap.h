// The code that rank 0 and the other ranks share once they are connected. Not public.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "a2a/bootstrap.h"
#include "bootstrap/tcp/tcp_socket.h"

namespace a2a {

inline constexpr size_t kLargestString = size_t{16} << 20;
inline constexpr size_t kLargestTable = size_t{256} << 20;  // all strings of one allgather

// A message received in frames.
struct IncomingString {
  std::string text;
  bool complete = false;

  void add(const wire::Frame& frame) {
    text += frame.payload;
    complete = frame.kind == wire::PieceKind::last;
  }
};

// A message sent in frames. It refers to the bytes.
class Outgoing {
 public:
  explicit Outgoing(std::span<const wire::Piece> pieces) : pieces_(pieces) {}
  bool complete(const Channel& channel) const { return pieces_.empty() && channel.idle(); }

  // Writes what the socket takes now. Returns false when the other end is gone.
  bool advance(Channel& channel) {
    for (;;) {
      if (!channel.write()) return false;
      if (!channel.idle() || pieces_.empty()) return true;
      channel.put(pieces_.front());
      pieces_ = pieces_.subspan(1);
    }
  }

 private:
  std::span<const wire::Piece> pieces_;
};

// An error ends the bootstrap on all ranks, because it is unknown which messages have arrived where: it is sent to the
// other ranks, and every later call throws it again.
class TcpBootstrap : public Bootstrap {
 public:
  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) final;
  bool has_network() const final { return own_address_.raw.ss_family != AF_UNIX; }
  // Makes new connections, one for each pair of processes; see transport/tcp/.
  std::shared_ptr<hosts::Network> network(Deadline deadline) final;

 protected:
  TcpBootstrap(Rank rank, int size, std::string job, std::string_view secret);

  Error error(Code code, const std::string& what) const { return {code, "job '" + job_ + "': " + what}; }
  // Returns the error as the other ranks get it: for them an interrupted rank is an aborted one.
  Error as_sent(const Error& error) const;

  // Returns the next frame that has come from a rank. Throws the error of a refusal. Also throws when the rank,
  // described by `who`, is gone, or a frame is not authentic.
  std::optional<wire::Frame> next(Channel& channel, const std::string& who) const;

  const Rank rank_;
  const int size_;
  const std::string job_;
  SocketAddress own_address_;  // other ranks reach this one at the address that it uses towards rank 0

 private:
  virtual std::vector<std::string> exchange(std::string_view mine, Deadline deadline) = 0;
  // Throws when a rank is gone or has given up. Requires that no rank can be in an exchange.
  virtual void check_others() = 0;
  // Sends the error to the ranks that are still there.
  virtual void send_error(const Error& error) = 0;

  // Runs body(). Its error ends this bootstrap, on all ranks. Throws when another thread is in a call.
  template <class Body>
  auto exclusively(Body&& body) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) throw error(Code::invalid_argument, "another thread is in allgather");
    if (broken_) throw Error(*broken_);
    try {
      return body();
    } catch (const Error& failure) {
      broken_ = as_sent(failure);
      send_error(*broken_);
      throw;
    }
  }

  const Digest network_key_;  // derived from the secret, which is not kept
  std::mutex mutex_;
  std::optional<Error> broken_;
};

std::shared_ptr<Bootstrap> tcp_hub(int size, const std::string& job, const std::string& address,
                                   std::string_view secret, Deadline deadline);
std::shared_ptr<Bootstrap> tcp_spoke(Rank rank, int size, const std::string& job, const std::string& address,
                                     std::string_view secret, Deadline deadline);

}  // namespace a2a
