// What rank 0 and the other ranks have in common once they know each other. Not public.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "a2a/bootstrap.h"
#include "a2a/tcp/socket.h"

namespace a2a {

inline constexpr size_t kLargestString = size_t{16} << 20;
inline constexpr size_t kLargestTable = size_t{256} << 20;  // all strings of one allgather

// A message that comes in frames.
struct Incoming {
  std::string text;
  bool complete = false;

  void add(const wire::Frame& frame) {
    text += frame.payload;
    complete = frame.kind == wire::Kind::last;
  }
};

// A message that goes out in frames. Its bytes belong to somebody else.
class Outgoing {
 public:
  explicit Outgoing(std::span<const wire::Piece> pieces) : pieces_(pieces) {}
  bool complete(const Channel& channel) const { return pieces_.empty() && channel.idle(); }

  // Writes what the socket takes now. False when the other end is gone.
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

// After an error nobody knows which messages have gone where: the others are told, and every later call is refused.
class TcpBootstrap : public Bootstrap {
 public:
  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) final;

 protected:
  TcpBootstrap(Rank rank, int size, std::string job) : rank_(rank), size_(size), job_(std::move(job)) {}

  Error error(Code code, const std::string& what) const { return {code, "job '" + job_ + "': " + what}; }
  // An error of this rank as the others should hear it.
  Error as_told(const Error& error) const;

  // The next frame that came from a rank, if there is one. Throws what it says when it is a refusal; throws, too, when
  // the rank, described by `who`, is gone or sends what it cannot have sealed.
  std::optional<wire::Frame> next(Channel& channel, const std::string& who) const;

  const Rank rank_;
  const int size_;
  const std::string job_;

 private:
  virtual std::vector<std::string> exchange(std::string_view mine, Deadline deadline) = 0;
  // Tells those who are still there.
  virtual void say_goodbye(const Error& error) = 0;

  std::mutex mutex_;
  std::optional<Error> broken_;
};

std::shared_ptr<Bootstrap> tcp_hub(int size, const std::string& job, const std::string& address,
                                   std::string_view secret, Deadline deadline);
std::shared_ptr<Bootstrap> tcp_spoke(Rank rank, int size, const std::string& job, const std::string& address,
                                     std::string_view secret, Deadline deadline);

}  // namespace a2a
