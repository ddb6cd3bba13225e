// The ranks that connect to rank 0.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "a2a/tcp/session.h"

namespace a2a {
namespace {

using namespace std::chrono_literals;
using wire::Kind;

constexpr double kPatienceSeconds = 5;  // with one connection
// So often in a row somebody at rank 0's address may reject this rank's proof, or have none of his own, before it is
// taken for a fact. A crowd of strangers can push out a proof before it is heard.
constexpr int kMostRejections = 20;

class TcpSpoke final : public TcpBootstrap {
 public:
  TcpSpoke(Rank rank, int size, const std::string& job, const std::string& address, std::string_view secret,
           Deadline deadline)
      : TcpBootstrap(rank, size, job), secret_(secret), address_(address) {
    const auto places = resolve(address);
    auto pause = 2ms;
    while (!join_at_one_of(places, deadline)) {
      if (deadline.passed()) {
        throw error(Code::timeout, "rank " + std::to_string(rank_) + " timed out waiting for rank 0 at " + address_ +
                                       " (" + trouble_ + ")");
      }
      rest(std::min<Deadline::Clock::duration>(pause, deadline.when() - Deadline::Clock::now()));
      pause = std::min(2 * pause, 100ms);
    }
    secret_.clear();
  }

 private:
  // ---- joining
  // -------------------------------------------------------------------------------------------------------

  bool join_at_one_of(const std::vector<Place>& places, Deadline deadline) {
    return std::any_of(places.begin(), places.end(), [&](const Place& place) { return join(place, deadline); });
  }

  // Whether rank 0 is there and has welcomed this rank. It may not be there yet, or be just leaving an earlier meeting.
  bool join(const Place& place, Deadline deadline) {
    const auto until = Deadline::at(std::min(deadline.when(), Deadline::after_seconds(kPatienceSeconds).when()));
    Socket socket = begin_connecting(place);
    int failed = socket.open() ? 0 : errno;
    if (failed == 0) failed = await(socket.fd(), POLLOUT, until) ? connecting_failed(socket) : ETIMEDOUT;
    if (failed != 0) return trouble(std::strerror(failed));

    std::string hello = wire::greeting(new_nonce()), challenge;
    std::string greetings = hello;
    if (!write_some(socket.fd(), hello) || !read_exactly(socket.fd(), wire::kGreetingBytes, challenge, until) ||
        !wire::may_be_greeting(challenge)) {
      return trouble("whoever listens there is no rank 0, or is leaving");
    }
    greetings += challenge;
    const wire::Introduction me{
        .rank = rank_, .size = size_, .pid = static_cast<uint32_t>(::getpid()), .job = wire::label(job_)};
    const std::string proof = wire::make_proof(secret_, greetings, me);
    std::string words = proof;
    const wire::Keys keys = wire::session_keys(secret_, greetings, proof);
    if (!write_some(socket.fd(), words)) return trouble("it hung up");
    return welcomed(Channel(std::move(socket), keys.to_rank_0, keys.from_rank_0), until);
  }

  bool welcomed(Channel channel, Deadline until) {
    std::optional<wire::Frame> frame;
    while (!(frame = channel.read())) {
      if (channel.gone() || channel.forged()) return reject();
      if (!await(channel.fd(), POLLIN, until)) return trouble("it did not answer");
    }
    if (frame->kind == Kind::refusal) throw wire::unpack_refusal(frame->payload);
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
    throw error(Code::invalid_argument, "rank " + std::to_string(rank_) + " and whoever listens at " + address_ +
                                            " do not have the same secret");
  }

  // Whether one of the events came in time.
  static bool await(int fd, short events, Deadline until) {
    pollfd one{fd, events, 0};
    while (poll_slice({&one, 1}, until) <= 0) {
      if (until.passed()) return false;
    }
    return true;
  }

  static bool read_exactly(int fd, size_t bytes, std::string& text, Deadline until) {
    while (text.size() < bytes) {
      if (!await(fd, POLLIN, until) || !read_some(fd, bytes - text.size(), text)) return false;
    }
    return true;
  }

  static void rest(Deadline::Clock::duration time) { await(-1, 0, Deadline::at(Deadline::Clock::now() + time)); }

  // ---- allgather
  // -----------------------------------------------------------------------------------------------------

  std::vector<std::string> exchange(std::string_view mine, Deadline deadline) override {
    const auto pieces = wire::pieces(mine);
    Outgoing string(pieces);
    Incoming table;
    while (!table.complete) {
      string.advance(channel_);  // where rank 0 is gone, reading tells, and perhaps why
      await_rank_0(string.complete(channel_) ? POLLIN : POLLIN | POLLOUT, deadline);
      while (!table.complete) {
        const auto frame = next(channel_, "rank 0");
        if (!frame) break;
        table.add(*frame);
        if (table.text.size() > kLargestTable + 8 * static_cast<size_t>(size_)) throw nonsense();
      }
    }
    auto strings = wire::unpack_strings(table.text, static_cast<size_t>(size_));
    if (!strings || !string.complete(channel_)) throw nonsense();
    return std::move(*strings);
  }

  void await_rank_0(short events, Deadline deadline) {
    if (await(channel_.fd(), events, deadline)) return;
    pollfd fd{channel_.fd(), POLLIN, 0};
    if (::poll(&fd, 1, kGraceMilliseconds) > 0) return;
    throw error(Code::timeout, "rank " + std::to_string(rank_) + " timed out waiting for the other ranks");
  }

  Error nonsense() const { return error(Code::backend, "rank 0 sent something that is no table of strings"); }

  void say_goodbye(const Error& failure) override {
    const std::string words = wire::pack_refusal(failure);
    const wire::Piece piece = wire::piece(Kind::refusal, words);
    Outgoing({&piece, 1}).advance(channel_);
    ::shutdown(channel_.fd(), SHUT_WR);
  }

  std::string secret_;  // until it is welcome
  std::string address_;
  std::string trouble_;  // why it is not welcome yet
  int rejections_ = 0;
  Channel channel_;
};

}  // namespace

std::shared_ptr<Bootstrap> tcp_spoke(Rank rank, int size, const std::string& job, const std::string& address,
                                     std::string_view secret, Deadline deadline) {
  return std::make_shared<TcpSpoke>(rank, size, job, address, secret, deadline);
}

}  // namespace a2a
