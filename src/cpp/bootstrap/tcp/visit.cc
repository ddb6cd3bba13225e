#include "bootstrap/tcp/visit.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace a2a {
namespace {

using namespace std::chrono_literals;

constexpr double kVisitSeconds = 5;  // for one connection
// After so many rejections in a row, of this rank's proof or for lack of the peer's, the secrets count as different. A
// single rejection may be chance: other connections can push this one out before its proof is read.
constexpr int kMostRejections = 20;

class Visitor {
 public:
  explicit Visitor(const Visit& visit) : visit_(visit) {}

  Channel knock(Deadline deadline) {
    auto pause = 2ms;
    while (!at_one_of_the_places(deadline)) {
      if (deadline.passed()) {
        throw error(Code::timeout,
                    me() + " timed out waiting for " + visit_.whom + " at " + visit_.address + " (" + trouble_ + ")");
      }
      rest(std::min<Deadline::Clock::duration>(pause, deadline.when() - Deadline::Clock::now()));
      pause = std::min(2 * pause, 100ms);
    }
    return std::move(channel_);
  }

 private:
  Error error(Code code, const std::string& what) const { return {code, "job '" + visit_.job + "': " + what}; }
  std::string me() const { return "rank " + std::to_string(visit_.rank); }

  bool at_one_of_the_places(Deadline deadline) {
    return std::ranges::any_of(visit_.places, [&](const Place& place) { return at(place, deadline); });
  }

  // Tries one place. Returns whether the peer has welcomed this rank. It may not be there yet, or be leaving an earlier
  // meeting.
  bool at(const Place& place, Deadline deadline) {
    const auto until = Deadline::at(std::min(deadline.when(), Deadline::after_seconds(kVisitSeconds).when()));
    Socket socket = begin_connecting(place);
    int failed = socket.open() ? 0 : errno;
    if (failed == 0) failed = await(socket.fd(), POLLOUT, until) ? connecting_failed(socket) : ETIMEDOUT;
    if (failed != 0) return trouble(std::strerror(failed));

    std::string hello = wire::greeting(new_nonce()), challenge;
    std::string greetings = hello;
    if (!write_some(socket.fd(), hello) || !read_exactly(socket.fd(), wire::kGreetingBytes, challenge, until) ||
        !wire::may_be_greeting(challenge)) {
      return trouble("whoever listens there is no " + visit_.whom + ", or is leaving");
    }
    greetings += challenge;
    const wire::Introduction who{.rank = visit_.rank,
                                 .size = visit_.size,
                                 .pid = static_cast<uint32_t>(::getpid()),
                                 .job = wire::label(visit_.job)};
    const std::string proof = wire::make_proof(visit_.secret, greetings, who);
    std::string words = proof;
    const wire::Keys keys = wire::session_keys(visit_.secret, greetings, proof);
    if (!write_some(socket.fd(), words)) return trouble("it hung up");
    return welcomed(Channel(std::move(socket), keys.to_rank_0, keys.from_rank_0), until);
  }

  bool welcomed(Channel channel, Deadline until) {
    std::optional<wire::Frame> frame;
    while (!(frame = channel.read())) {
      if (channel.gone() || channel.forged()) return reject();
      if (!await(channel.fd(), POLLIN, until)) return trouble("it did not answer");
    }
    if (frame->kind == wire::PieceKind::refusal) throw wire::unpack_refusal(frame->payload);
    channel_ = std::move(channel);
    return true;
  }

  bool trouble(const std::string& what) {
    trouble_ = what;
    rejections_ = 0;
    return false;
  }

  bool reject() {
    trouble_ = "it does not have the same secret";
    if (++rejections_ < kMostRejections) return false;
    throw error(Code::invalid_argument,
                me() + " and whoever listens at " + visit_.address + " do not have the same secret");
  }

  bool await(int fd, short events, Deadline until) const { return a2a::await(fd, events, until, visit_.meanwhile); }

  bool read_exactly(int fd, size_t bytes, std::string& text, Deadline until) const {
    while (text.size() < bytes) {
      if (!await(fd, POLLIN, until) || !read_some(fd, bytes - text.size(), text)) return false;
    }
    return true;
  }

  void rest(Deadline::Clock::duration time) const { await(-1, 0, Deadline::at(Deadline::Clock::now() + time)); }

  const Visit& visit_;
  std::string trouble_;  // why this rank is not welcome yet
  int rejections_ = 0;
  Channel channel_;
};

}  // namespace

Channel knock(const Visit& visit, Deadline deadline) { return Visitor(visit).knock(deadline); }

}  // namespace a2a
