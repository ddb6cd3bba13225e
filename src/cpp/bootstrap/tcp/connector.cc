#include "bootstrap/tcp/connector.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bootstrap/tcp/dial.h"

namespace a2a {
namespace {

using namespace std::chrono_literals;

constexpr double kAttemptSeconds = 5;  // for one connection
// After so many rejections in a row, of this rank's proof or for lack of the peer's, the secrets count as different. A
// single rejection may be chance: other connections can push this one out before its proof is read.
constexpr int kMostRejections = 20;

class Connector {
 public:
  explicit Connector(const ConnectArguments& arguments) : arguments_(arguments) {}

  Channel run(Deadline deadline) {
    auto pause = 2ms;
    while (!try_all(deadline)) {
      if (deadline.passed()) {
        throw error(Code::timeout, me() + " timed out waiting for " + arguments_.peer + " at " + arguments_.address +
                                       " (" + failure_ + ")");
      }
      sleep(std::min<Deadline::Clock::duration>(pause, deadline.when() - Deadline::Clock::now()));
      pause = std::min(2 * pause, 100ms);
    }
    return std::move(channel_);
  }

 private:
  Error error(Code code, const std::string& what) const { return {code, "job '" + arguments_.job + "': " + what}; }
  std::string me() const { return "rank " + std::to_string(arguments_.rank); }

  bool try_all(Deadline deadline) {
    return std::ranges::any_of(arguments_.addresses,
                               [&](const SocketAddress& address) { return try_one(address, deadline); });
  }

  // Tries one address. Returns whether the peer has accepted this rank. Another attempt makes sense after a failure:
  // the peer may not listen yet, or close the listener of an earlier meeting.
  bool try_one(const SocketAddress& address, Deadline deadline) {
    const auto until = Deadline::at(std::min(deadline.when(), Deadline::after_seconds(kAttemptSeconds).when()));
    Dial dial(address, arguments_.secret,
              {.rank = arguments_.rank,
               .size = arguments_.size,
               .pid = static_cast<uint32_t>(::getpid()),
               .job = wire::label(arguments_.job)});
    while (dial.going()) {
      const pollfd wanted = dial.wanted();
      if (!await(wanted.fd, wanted.events, until)) return note_silence(dial.state());
      dial.advance();
    }
    switch (dial.state()) {
      case Dial::State::welcomed:
        channel_ = std::move(dial.channel());
        return true;
      case Dial::State::refused:
        throw dial.refusal();
      case Dial::State::failed:
        return note_failure(std::strerror(dial.cause()));
      case Dial::State::rejected:
        return note_rejection();
      default:
        return note_failure("whoever listens there is no " + arguments_.peer + ", or is leaving");
    }
  }

  bool note_silence(Dial::State state) {
    return note_failure(state == Dial::State::connecting ? std::strerror(ETIMEDOUT)
                        : state == Dial::State::greeting
                            ? "whoever listens there is no " + arguments_.peer + ", or is leaving"
                            : "it did not answer");
  }

  bool note_failure(const std::string& what) {
    failure_ = what;
    rejections_ = 0;
    return false;
  }

  bool note_rejection() {
    failure_ = "it does not have the same secret";
    if (++rejections_ < kMostRejections) return false;
    throw error(Code::invalid_argument,
                me() + " and whoever listens at " + arguments_.address + " do not have the same secret");
  }

  bool await(int fd, short events, Deadline until) const { return a2a::await(fd, events, until, arguments_.meanwhile); }

  void sleep(Deadline::Clock::duration time) const { await(-1, 0, Deadline::at(Deadline::Clock::now() + time)); }

  const ConnectArguments& arguments_;
  std::string failure_;  // of the last attempt
  int rejections_ = 0;
  Channel channel_;
};

}  // namespace

Channel connect_authenticated(const ConnectArguments& arguments, Deadline deadline) {
  return Connector(arguments).run(deadline);
}

}  // namespace a2a
