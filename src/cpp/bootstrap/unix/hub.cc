// The side of rank 0: accepts all ranks, then collects their strings and distributes them.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>

#include "a2a/work.h"
#include "bootstrap/ended_ranks.h"
#include "bootstrap/tcp/tcp_socket.h"
#include "bootstrap/unix/packet.h"
#include "bootstrap/user.h"
#include "runtime/process.h"

namespace a2a::local {
namespace {

using namespace std::chrono_literals;

class Hub final : public Bootstrap {
 public:
  Hub(int size, const std::string& job, Deadline deadline)
      : size_(size), job_(job), members_(static_cast<size_t>(size)) {
    listen();
    with_errors_sent([&] {
      for (;;) {
        wait(deadline);
        if (missing().empty()) break;
        if (deadline.passed()) throw late();
        require_all_running(job_, size_);
      }
    });
    pending_.clear();
    listener_ = Socket();
    spare_ = Socket();
  }

  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override {
    return with_errors_sent([&] {
      check_string(mine, 0);
      auto strings = collect(mine, deadline);
      distribute(strings, deadline);
      return strings;
    });
  }

 private:
  struct Member {
    Socket socket;
    pid_t pid = 0;
    std::optional<std::string> string;  // of this allgather, if it has come
  };
  Member& member(Rank rank) { return members_[static_cast<size_t>(rank)]; }
  bool joined(Rank rank) { return rank >= 1 && rank < size_ && member(rank).socket.open(); }

  std::vector<Rank> ranks_where(const std::function<bool(Rank)>& wanted) {
    std::vector<Rank> ranks;
    for (Rank r = 1; r < size_; ++r) {
      if (wanted(r)) ranks.push_back(r);
    }
    return ranks;
  }
  std::vector<Rank> missing() {
    return ranks_where([this](Rank r) { return !joined(r); });
  }

  // ---- errors -----------------------------------------------------------------------------------------------------

  Error error(Code code, const std::string& what) const { return {code, "job '" + job_ + "': " + what}; }

  // Describes ranks: "rank 1 (pid 5, alive but stopped), rank 2". The state of the process is given for the first few.
  std::string describe(const std::vector<Rank>& ranks) {
    constexpr size_t kDescribed = 8;
    std::string text;
    for (size_t i = 0; i < std::min(ranks.size(), kDescribed); ++i) {
      text += (i == 0 ? "rank " : ", rank ") + std::to_string(ranks[i]);
      if (const pid_t pid = member(ranks[i]).pid; pid > 0) text += " (" + process_in_words(pid) + ")";
    }
    if (ranks.size() > kDescribed) text += ", rank " + list({ranks.begin() + kDescribed, ranks.end()});
    return text;
  }

  // Returns the error of a passed deadline. It names the ranks that never came first: others may have left because of
  // them.
  Error late() {
    const auto never = ranks_where([this](Rank r) { return !joined(r) && !left_.contains(r); });
    const auto left = ranks_where([this](Rank r) { return left_.contains(r); });
    std::string text = "rank 0 timed out waiting for " + describe(never.empty() ? left : never);
    if (!never.empty() && !left.empty()) text += "; " + describe(left) + " gave up earlier";
    if (never.empty()) text += ", which gave up earlier";
    return error(Code::timeout, text);
  }

  Error lost(Rank rank) {
    std::string text =
        "rank " + std::to_string(rank) + " (pid " + std::to_string(member(rank).pid) + ") was lost while the ranks met";
    if (const auto others = missing(); !others.empty()) text += "; not there yet: " + describe(others);
    culprit_ = rank;
    return error(Code::peer_lost, text);
  }

  // Runs body(), and sends its error to the other ranks.
  template <class Body>
  auto with_errors_sent(Body&& body) -> decltype(body()) {
    try {
      return body();
    } catch (const Interrupted& interrupted) {
      refuse_members(error(Code::aborted, std::string("rank 0 was ") + interrupted.what()));
      throw;
    } catch (const Error& failure) {
      refuse_members(failure);
      if (culprit_ && listener_.open()) refuse_latecomers(failure);
      throw;
    }
  }

  void refuse_members(const Error& failure) {
    for (const Member& one : members_) {
      if (one.socket.open()) send_refusal(one.socket.fd(), failure);
    }
  }

  // Sends the error to ranks that connect a little later: they would wait for a rank 0 that has left already.
  void refuse_latecomers(const Error& failure) {
    const Deadline until = Deadline::at(Deadline::Clock::now() + 300ms);
    auto waiting = missing();
    std::erase(waiting, *culprit_);
    const auto refuse = [&](const Socket& newcomer) {
      pollfd fd{newcomer.fd(), POLLIN, 0};
      std::optional<Packet> packet;
      if (::poll(&fd, 1, 20) <= 0 || !receive(newcomer.fd(), packet) || !packet) return;
      if (packet->header.rank == *culprit_) return;  // it was started again, for the next attempt of the job
      send_refusal(newcomer.fd(), failure);
      std::erase(waiting, packet->header.rank);
    };
    std::ranges::for_each(pending_, refuse);
    while (!waiting.empty() && !until.passed()) {
      pollfd fd{listener_.fd(), POLLIN, 0};
      if (::poll(&fd, 1, slice(until)) <= 0) continue;
      if (const Socket newcomer = accept(); newcomer.open() && same_user(newcomer.fd())) refuse(newcomer);
    }
  }

  // ---- the meeting ------------------------------------------------------------------------------------------------

  void listen() {
    listener_ = new_socket();
    const UnixAddress address = address_of(job_);
    if (::bind(listener_.fd(), address.get(), address.length) != 0) {
      if (errno == EADDRINUSE) throw already_listening(address);
      socket_failure("cannot bind the socket of job '" + job_ + "'");
    }
    if (::listen(listener_.fd(), size_) != 0) socket_failure("listen");
    spare_ = new_socket();
  }

  Error already_listening(const UnixAddress& address) const {
    const Socket probe = new_socket();
    std::string who;
    if (connect_soon(probe.fd(), address.get(), address.length)) {
      who = " (pid " + std::to_string(peer_credentials(probe.fd()).pid) + ")";
    }
    return error(
        Code::invalid_argument,
        "rank 0 is already there" + who + "; each rank of a job is started once, and each job needs a name of its own");
  }

  Socket accept() const { return Socket(accept_on(listener_.fd())); }

  // Handles connections, hellos and leaves for a short while.
  void wait(Deadline deadline) {
    std::vector<pollfd> fds{{listener_.fd(), POLLIN, 0}};
    for (Rank r = 1; r < size_; ++r)
      fds.push_back({member(r).socket.fd(), POLLIN, 0});  // poll() ignores a rank that has not joined
    for (const auto& [rank, process] : left_) fds.push_back({process.fd(), POLLIN, 0});
    for (const Socket& s : pending_) fds.push_back({s.fd(), POLLIN, 0});
    if (poll_slice(fds, deadline) <= 0) return;
    const pollfd* came = &fds[1];
    std::vector<Rank> exited;
    for (Rank r = 1; r < size_; ++r, ++came) {
      if (came->revents != 0) receive_from(r);
    }
    for (const pollfd* end = &fds.back() + 1 - pending_.size(); came != end; ++came) {
      if (came->revents != 0) exited.push_back(rank_behind(came->fd));
    }
    admit_pending(came);
    if (fds[0].revents != 0) accept_waiting();
    // A rank that connected again has joined above. One whose process has exited cannot connect again.
    for (const Rank r : exited) {
      if (left_.contains(r)) throw gone_for_good(r);
    }
  }

  Rank rank_behind(int process) const {
    return std::ranges::find(left_, process, [](const auto& entry) { return entry.second.fd(); })->first;
  }

  Error gone_for_good(Rank rank) {
    left_.erase(rank);
    culprit_ = rank;
    auto others = missing();
    std::erase(others, rank);
    return error(Code::timeout, describe({rank}) + " gave up waiting for " +
                                    (others.empty() ? "the others" : describe(others)) + ", and will not come back");
  }

  void admit_pending(const pollfd* came) {
    // Admits those that have sent something. They stay in the list until then, so that all get the error if one is
    // refused.
    std::vector<Socket> silent, speaking;
    for (Socket& s : pending_) ((came++)->revents == 0 ? silent : speaking).push_back(std::move(s));
    const size_t quiet = silent.size();
    std::ranges::move(speaking, std::back_inserter(silent));
    pending_ = std::move(silent);
    while (pending_.size() > quiet) {
      Socket socket = std::move(pending_.back());
      pending_.pop_back();
      admit(std::move(socket));
    }
  }

  void accept_waiting() {
    Socket newcomer = accept();
    if (!newcomer.open() && accepting_refused(errno)) {
      const std::string why = std::strerror(errno);
      spare_ = Socket();  // frees a descriptor, with which waiting ranks are accepted and get the error
      culprit_ = 0;
      throw error(Code::backend, "rank 0 cannot accept rank " + list(missing()) + ": " + why);
    }
    // Any process on the host may connect to an abstract name. Connections of other users are closed without an answer.
    if (newcomer.open() && same_user(newcomer.fd())) pending_.push_back(std::move(newcomer));
  }

  void admit(Socket socket) {
    std::optional<Packet> packet;
    if (!receive(socket.fd(), packet) || !packet || packet->header.kind != Header::hello) return;
    const Header& h = packet->header;
    std::string wrong = mistake(h);
    if (wrong.empty() && joined(h.rank)) {
      const Remains remains = which_remains(member(h.rank).socket.fd(), socket.fd());
      if (remains == Remains::first) return;
      if (remains == Remains::both) wrong = joined_twice(h);
    }
    if (!wrong.empty()) {
      const Error refusal = error(Code::invalid_argument, wrong);
      send_refusal(socket.fd(), refusal);
      culprit_ = h.rank;
      throw refusal;
    }
    if (send(socket.fd(), {.kind = Header::welcome, .pid = ::getpid()}) != Sent::yes) return;
    left_.erase(h.rank);
    member(h.rank) = {std::move(socket), h.pid, {}};
  }

  std::string mistake(const Header& h) {
    const std::string rank = "rank " + std::to_string(h.rank);
    if (h.size != size_) {
      return rank + " was started with size " + std::to_string(h.size) + ", rank 0 with size " + std::to_string(size_);
    }
    if (h.rank < 1 || h.rank >= size_) return rank + " is not between 1 and " + std::to_string(size_ - 1);
    return "";
  }

  std::string joined_twice(const Header& h) {
    return "rank " + std::to_string(h.rank) + " joined twice, from pid " + std::to_string(member(h.rank).pid) +
           " and pid " + std::to_string(h.pid);
  }

  // Receives a packet of a member: its string, or its leave.
  void receive_from(Rank rank) {
    std::optional<Packet> packet;
    if (!receive(member(rank).socket.fd(), packet)) throw lost(rank);
    if (!packet) return;
    if (packet->header.kind == Header::leave) return handle_leave(rank, code_of(packet->header));
    if (packet->header.kind != Header::data || member(rank).string) throw lost(rank);
    member(rank).string = std::move(packet->text);
  }

  // Handles a rank that leaves. Until all ranks have joined it may connect again. It gets the names of the ranks that
  // it waited for.
  void handle_leave(Rank rank, Code why) {
    std::vector<Rank> waiting = listener_.open() ? missing() : waiting_;
    std::erase(waiting, rank);
    const std::string name = "rank " + std::to_string(rank);
    const Error reason =
        why == Code::timeout
            ? error(why, name + " timed out" +
                             (waiting.empty() ? " while the ranks met" : " waiting for " + describe(waiting)))
            : error(Code::aborted, name + " was interrupted while the ranks met");
    if (!listener_.open()) throw reason;
    send_refusal(member(rank).socket.fd(), reason);
    const pid_t pid = peer_credentials(member(rank).socket.fd()).pid;
    left_[rank] = Socket(pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1);
    member(rank).socket = Socket();
    member(rank).string.reset();
  }

  // ---- allgather --------------------------------------------------------------------------------------------------

  std::vector<std::string> collect(std::string_view mine, Deadline deadline) {
    for (;;) {
      waiting_ = ranks_where([this](Rank r) { return !member(r).string; });
      if (waiting_.empty()) break;
      if (deadline.passed()) throw error(Code::timeout, "rank 0 timed out waiting for " + describe(waiting_));
      poll_members([](Rank) { return POLLIN; }, deadline);
    }
    std::vector<std::string> all{std::string(mine)};
    for (Rank r = 1; r < size_; ++r) {
      all.push_back(std::move(*member(r).string));
      member(r).string.reset();
    }
    return all;
  }

  // Distributes the table. A rank that does not read delays no other.
  void distribute(const std::vector<std::string>& strings, Deadline deadline) {
    const std::string table = wire::pack_strings(strings);
    std::vector<std::string_view> left(static_cast<size_t>(size_), table);
    const auto unfinished = [&](Rank r) { return !left[static_cast<size_t>(r)].empty(); };
    for (;;) {
      for (Rank to = 1; to < size_; ++to) send_part(to, left[static_cast<size_t>(to)]);
      waiting_ = ranks_where(unfinished);
      if (waiting_.empty()) return;
      if (deadline.passed()) {
        throw error(Code::timeout,
                    "rank 0 timed out waiting for " + describe(waiting_) + " to take what the ranks told each other");
      }
      poll_members([&](Rank r) { return unfinished(r) ? POLLIN | POLLOUT : 0; }, deadline);
    }
  }

  // Sends as much of the text as the rank takes now, and removes it.
  void send_part(Rank to, std::string_view& text) {
    while (!text.empty()) {
      const std::string_view part = text.substr(0, kLargestString);
      const Header header{.kind = Header::data, .size = part.size() == text.size()};
      const Sent sent = send(member(to).socket.fd(), header, part);
      if (sent == Sent::gone) receive_from(to);  // it may have sent its leave
      if (sent == Sent::gone) throw lost(to);
      if (sent == Sent::not_yet) return;
      text.remove_prefix(part.size());
    }
  }

  // Waits a short while for the given events of each rank, none where they are 0, and handles packets.
  template <class Events>
  void poll_members(Events&& events, Deadline deadline) {
    std::vector<pollfd> fds;
    for (Rank r = 1; r < size_; ++r) {
      const auto wanted = static_cast<short>(events(r));
      fds.push_back({wanted == 0 ? -1 : member(r).socket.fd(), wanted, 0});
    }
    if (poll_slice(fds, deadline) <= 0) return;
    for (Rank r = 1; r < size_; ++r) {
      if ((fds[static_cast<size_t>(r - 1)].revents & ~POLLOUT) != 0) receive_from(r);
    }
  }

  int size_;
  std::string job_;
  Socket listener_;              // open until all ranks are there
  Socket spare_;                 // open as long; accept_waiting() closes it to get a descriptor
  std::vector<Socket> pending_;  // connected, but without a hello
  std::vector<Member> members_;
  std::map<Rank, Socket> left_;  // pidfds of ranks that gave up and may connect again
  std::optional<Rank>
      culprit_;  // the rank because of which the ranks do not meet; if it connects again, that is for the next attempt
  std::vector<Rank> waiting_;  // for their strings, or for them to take the table
};

}  // namespace

std::shared_ptr<Bootstrap> hub(int size, const std::string& job, Deadline deadline) {
  return std::make_shared<Hub>(size, job, deadline);
}

}  // namespace a2a::local
