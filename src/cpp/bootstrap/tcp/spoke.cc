// The side of the ranks that connect to rank 0.
#include "bootstrap/ended_ranks.h"
#include "bootstrap/tcp/connector.h"
#include "bootstrap/tcp/tcp_bootstrap.h"

namespace a2a {
namespace {

class TcpSpoke final : public TcpBootstrap {
 public:
  TcpSpoke(Rank rank, int size, const std::string& job, const std::string& address, std::string_view secret,
           Deadline deadline)
      : TcpBootstrap(rank, size, job, secret) {
    const ConnectArguments arguments{.peer = "rank 0",
                                     .address = address,
                                     .addresses = resolve(address, deadline),
                                     .secret = std::string(secret),
                                     .job = job,
                                     .rank = rank,
                                     .size = size,
                                     .meanwhile = [&] { require_all_running(job, size); }};
    channel_ = connect_authenticated(arguments, deadline);
    own_address_ = local_address(channel_.fd());
  }

 private:
  // ---- allgather ---------------------------------------------------------------------------------------------------

  std::vector<std::string> exchange(std::string_view mine, Deadline deadline) override {
    const auto pieces = wire::pieces(mine);
    Outgoing string(pieces);
    IncomingString table;
    while (!table.complete) {
      string.advance(
          channel_);  // a failure is ignored: reading notices it, too, and gets what rank 0 sent before it ended
      await_rank_0(string.complete(channel_) ? POLLIN : POLLIN | POLLOUT, deadline);
      while (!table.complete) {
        const auto frame = next(channel_, "rank 0");
        if (!frame) break;
        table.add(*frame);
        if (table.text.size() > kLargestTable + 8 * static_cast<size_t>(size_)) throw not_a_table();
      }
    }
    auto strings = wire::unpack_strings(table.text, static_cast<size_t>(size_));
    if (!strings || !string.complete(channel_)) throw not_a_table();
    return std::move(*strings);
  }

  void await_rank_0(short events, Deadline deadline) {
    if (await(channel_.fd(), events, deadline)) return;
    pollfd fd{channel_.fd(), POLLIN, 0};
    if (::poll(&fd, 1, kGraceMilliseconds) > 0) return;
    // Rank 0's own deadline has not passed. It knows which ranks this one has waited for, and answers.
    const Error late = error(Code::timeout, "rank " + std::to_string(rank_) + " timed out waiting for the other ranks");
    send_error(late);
    const auto until = Deadline::after_seconds(kGraceMilliseconds / 1e3);
    while (!until.passed() && !channel_.gone()) {
      ::poll(&fd, 1, slice(until));
      const auto frame = channel_.read();
      if (frame && frame->kind == wire::PieceKind::refusal) throw wire::unpack_refusal(frame->payload);
    }
    throw late;
  }

  Error not_a_table() const { return error(Code::backend, "rank 0 sent something that is no table of strings"); }

  void check_others() override {
    pollfd fd{channel_.fd(), POLLRDHUP, 0};
    if (::poll(&fd, 1, 0) <= 0) return;
    while (next(channel_, "rank 0")) {
    }
  }

  void send_error(const Error& failure) override {
    const std::string payload = wire::pack_refusal(failure);
    const wire::Piece piece = wire::piece(wire::PieceKind::refusal, payload);
    Outgoing({&piece, 1}).advance(channel_);
    ::shutdown(channel_.fd(), SHUT_WR);
  }

  Channel channel_;
};

}  // namespace

std::shared_ptr<Bootstrap> tcp_spoke(Rank rank, int size, const std::string& job, const std::string& address,
                                     std::string_view secret, Deadline deadline) {
  return std::make_shared<TcpSpoke>(rank, size, job, address, secret, deadline);
}

}  // namespace a2a
