// The side of rank 0: accepts all ranks, then collects their strings and distributes them.
#include "bootstrap/ended_ranks.h"
#include "bootstrap/tcp/acceptor.h"
#include "bootstrap/tcp/tcp_bootstrap.h"
#include "runtime/process.h"

namespace a2a {
namespace {

using wire::PieceKind;

class TcpHub final : public TcpBootstrap {
 public:
  TcpHub(int size, const std::string& job, const std::string& address, std::string_view secret, Deadline deadline)
      : TcpBootstrap(0, size, job, secret), label_(wire::label(job)), members_(static_cast<size_t>(size)) {
    Acceptor acceptor(listen_at(resolve(address, deadline), address), secret);
    own_address_ = acceptor.address();
    try {
      while (!missing().empty()) {
        if (deadline.passed()) {
          throw error(Code::timeout, "rank 0, at " + address + ", timed out waiting for rank " + list(missing()) +
                                         acceptor.refusals());
        }
        require_all_running(job, size);
        await_members(acceptor, deadline);
      }
    } catch (const Error& failure) {
      send_error(as_sent(failure));
      throw;
    }
  }

 private:
  struct Member {
    Channel channel;
    uint32_t pid = 0;
    std::string host;
  };

  Member& member(Rank rank) { return members_[static_cast<size_t>(rank)]; }

  std::string name(Rank rank) {
    return "rank " + std::to_string(rank) + " (pid " + std::to_string(member(rank).pid) + " at " + member(rank).host +
           ")";
  }

  // ---- the meeting ------------------------------------------------------------------------------------------------

  // Returns the next frame of a rank. If that is the rank's timeout, throws an error that names the ranks it waited
  // for: all of `awaited` but itself.
  std::optional<wire::Frame> receive_from(Rank rank, std::vector<Rank> awaited) {
    try {
      return next(member(rank).channel, name(rank));
    } catch (const Error& failure) {
      std::erase(awaited, rank);
      if (failure.code() != Code::timeout || awaited.empty()) throw;
      throw error(Code::timeout, "rank " + std::to_string(rank) + " timed out waiting for rank " + list(awaited));
    }
  }

  std::vector<Rank> missing() {
    std::vector<Rank> ranks;
    for (Rank r = 1; r < size_; ++r) {
      if (!member(r).channel.open()) ranks.push_back(r);
    }
    return ranks;
  }

  // Handles connections, and members that leave, for a short while.
  void await_members(Acceptor& acceptor, Deadline deadline) {
    std::vector<pollfd> fds;
    for (Rank r = 1; r < size_; ++r)
      fds.push_back({member(r).channel.fd(), POLLRDHUP, 0});  // poll() ignores a rank that has not joined
    acceptor.add_to(fds);
    if (poll_slice(fds, deadline) < 0) return;
    for (Rank r = 1; r < size_; ++r) {
      // Frames other than a refusal are discarded: a rank whose connection has ended takes no part.
      while (fds[static_cast<size_t>(r - 1)].revents != 0 && receive_from(r, missing())) {
      }
    }
    for (AcceptedRank& accepted : acceptor.serve(std::span(fds).subspan(members_.size() - 1)))
      admit(std::move(accepted));
  }

  void admit(AcceptedRank accepted) {
    const wire::Introduction& who = accepted.who;
    if (who.job != label_) {  // a rank of another job does not make this one fail
      refuse(accepted, error(Code::invalid_argument, "rank " + std::to_string(who.rank) + " of job '" + who.job +
                                                         "' came to rank 0 of this one"));
      return;
    }
    auto wrong = mistake(accepted);
    if (!wrong && joined(who.rank)) {
      const Remains remains = which_remains(member(who.rank).channel.fd(), accepted.channel.fd());
      if (remains == Remains::first) return;
      if (remains == Remains::both) wrong = joined_twice(accepted);
    }
    if (wrong) {
      refuse(accepted, *wrong);
      throw Error(*wrong);
    }
    accepted.channel.put(wire::piece(PieceKind::welcome, ""));
    if (accepted.channel.write()) member(who.rank) = {std::move(accepted.channel), who.pid, std::move(accepted.host)};
  }

  std::optional<Error> mistake(const AcceptedRank& accepted) {
    const wire::Introduction& who = accepted.who;
    const std::string rank = "rank " + std::to_string(who.rank);
    if (who.protocol != wire::kProtocol) {
      return error(Code::unsupported, rank + " runs another version of this library: it speaks protocol " +
                                          std::to_string(who.protocol) + ", rank 0 " + std::to_string(wire::kProtocol));
    }
    if (who.size != size_) {
      return error(Code::invalid_argument, rank + " was started with size " + std::to_string(who.size) +
                                               ", rank 0 with size " + std::to_string(size_));
    }
    if (who.rank < 1 || who.rank >= size_) {
      return error(Code::invalid_argument, rank + " is not between 1 and " + std::to_string(size_ - 1));
    }
    return std::nullopt;
  }

  Error joined_twice(const AcceptedRank& accepted) {
    const Member& first = member(accepted.who.rank);
    return error(Code::invalid_argument, "rank " + std::to_string(accepted.who.rank) + " joined twice, from pid " +
                                             std::to_string(first.pid) + " at " + first.host + " and pid " +
                                             std::to_string(accepted.who.pid) + " at " + accepted.host);
  }

  bool joined(Rank rank) { return member(rank).channel.open() && !outlived(member(rank)); }

  // Whether the process of a member has ended although its connection is open: a child that it forked may keep it open.
  // This is known for processes of this host only.
  bool outlived(const Member& one) const {
    return one.host == own_address_.host() && has_exited(static_cast<pid_t>(one.pid));
  }

  static void refuse(AcceptedRank& accepted, const Error& why) {
    const std::string payload = wire::pack_refusal(why);
    accepted.channel.put(wire::piece(PieceKind::refusal, payload));
    accepted.channel.write();
  }

  // ---- allgather --------------------------------------------------------------------------------------------------

  std::vector<std::string> exchange(std::string_view mine, Deadline deadline) override {
    auto strings = collect(mine, deadline);
    distribute(wire::pack_strings(strings), deadline);
    return strings;
  }

  // Polls for the given events of ranks 1, 2, ...; 0 leaves a rank out. Throws when the deadline has passed; the error
  // names the ranks of `needed`.
  std::vector<pollfd> poll_members(const std::vector<short>& events, const std::vector<Rank>& needed,
                                   Deadline deadline) {
    if (deadline.passed()) {
      throw error(Code::timeout, "rank 0 timed out waiting for rank " + list(needed));
    }
    std::vector<pollfd> fds;
    for (Rank r = 1; r < size_; ++r) {
      const short wanted = events[static_cast<size_t>(r - 1)];
      fds.push_back({wanted == 0 ? -1 : member(r).channel.fd(), wanted, 0});
    }
    if (poll_slice(fds, deadline) <= 0) {
      for (pollfd& fd : fds) fd.revents = 0;
    }
    return fds;
  }

  std::vector<std::string> collect(std::string_view mine, Deadline deadline) {
    std::vector<IncomingString> strings(members_.size());
    size_t bytes = mine.size();
    strings[0] = {std::string(mine), true};
    for (;;) {
      std::vector<Rank> waiting;
      std::vector<short> events;
      for (Rank r = 1; r < size_; ++r) {
        const bool complete = strings[static_cast<size_t>(r)].complete;
        if (!complete) waiting.push_back(r);
        events.push_back(complete ? POLLRDHUP : POLLIN);
      }
      if (waiting.empty()) break;
      const auto fds = poll_members(events, waiting, deadline);
      for (Rank r = 1; r < size_; ++r) {
        if (fds[static_cast<size_t>(r - 1)].revents != 0)
          receive_part(r, strings[static_cast<size_t>(r)], bytes, waiting);
      }
    }
    std::vector<std::string> texts;
    for (IncomingString& string : strings) texts.push_back(std::move(string.text));
    return texts;
  }

  void receive_part(Rank rank, IncomingString& string, size_t& bytes, const std::vector<Rank>& waiting) {
    while (const auto frame = receive_from(rank, waiting)) {
      if (string.complete) throw out_of_turn(rank);
      string.add(*frame);
      bytes += frame->payload.size();
      if (string.text.size() > kLargestString || bytes > kLargestTable) {
        throw error(Code::invalid_argument, "with the string of " + name(rank) + " the ranks exchange more than " +
                                                std::to_string(kLargestString) + " bytes of one rank, or " +
                                                std::to_string(kLargestTable) + " of all");
      }
    }
  }

  Error out_of_turn(Rank rank) { return error(Code::backend, name(rank) + " spoke out of turn"); }

  // Throws when a rank that waits for the others' strings sends something, or leaves.
  void require_silence(Rank rank) {
    if (next(member(rank).channel, name(rank))) throw out_of_turn(rank);
  }

  void distribute(const std::string& table, Deadline deadline) {
    const auto pieces = wire::pieces(table);
    std::vector<Outgoing> replies(members_.size() - 1, Outgoing(pieces));
    for (;;) {
      std::vector<Rank> waiting;
      std::vector<short> events;
      for (Rank r = 1; r < size_; ++r) {
        Outgoing& reply = replies[static_cast<size_t>(r - 1)];
        Channel& channel = member(r).channel;
        if (!reply.advance(channel)) require_silence(r);
        if (!reply.complete(channel)) waiting.push_back(r);
        events.push_back(reply.complete(channel) ? 0 : POLLOUT | POLLRDHUP);
      }
      if (waiting.empty()) return;
      const auto fds = poll_members(events, waiting, deadline);
      for (Rank r = 1; r < size_; ++r) {
        if ((fds[static_cast<size_t>(r - 1)].revents & ~POLLOUT) != 0) require_silence(r);
      }
    }
  }

  void check_others() override {
    std::vector<pollfd> fds;
    for (Rank r = 1; r < size_; ++r) fds.push_back({member(r).channel.fd(), POLLRDHUP, 0});
    if (::poll(fds.data(), fds.size(), 0) <= 0) return;
    for (Rank r = 1; r < size_; ++r) {
      while (fds[static_cast<size_t>(r - 1)].revents != 0 && next(member(r).channel, name(r))) {
      }
    }
  }

  // Waits a short while until the others have read the refusal: the kernel discards unread data when a connection is
  // closed on which unread bytes have come.
  void send_error(const Error& failure) override {
    const auto until = Deadline::after_seconds(0.2);
    const std::string payload = wire::pack_refusal(failure);
    const wire::Piece piece = wire::piece(PieceKind::refusal, payload);
    std::vector<Outgoing> last(members_.size(), Outgoing({&piece, 1}));
    std::vector<bool> sent(members_.size());
    for (;;) {
      std::vector<pollfd> fds;
      for (size_t i = 1; i < members_.size(); ++i) {
        Channel& channel = members_[i].channel;
        if (!channel.open()) continue;
        std::string ignored;
        if (!sent[i]) {
          sent[i] = !last[i].advance(channel) || last[i].complete(channel);
          if (sent[i]) ::shutdown(channel.fd(), SHUT_WR);
        }
        if (!read_some(channel.fd(), wire::kLargestFrame, ignored)) channel.close();
        if (channel.open()) fds.push_back({channel.fd(), static_cast<short>(sent[i] ? POLLIN : POLLIN | POLLOUT), 0});
      }
      if (fds.empty() || until.passed()) break;
      ::poll(fds.data(), fds.size(), slice(until));
    }
    for (Member& one : members_) one.channel.close();
  }

  std::string label_;
  std::vector<Member> members_;
};

}  // namespace

std::shared_ptr<Bootstrap> tcp_hub(int size, const std::string& job, const std::string& address,
                                   std::string_view secret, Deadline deadline) {
  return std::make_shared<TcpHub>(size, job, address, secret, deadline);
}

}  // namespace a2a
