// Rank 0: listens until everybody is there, then collects and hands out.
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
      : size_(size), job_(job), guests_(static_cast<size_t>(size)) {
    listen();
    telling([&] {
      for (;;) {
        wait(deadline);
        if (missing().empty()) break;
        if (deadline.passed()) throw late();
        require_all_running(job_, size_);
      }
    });
    strangers_.clear();
    listener_ = Socket();
    spare_ = Socket();
  }

  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override {
    return telling([&] {
      check_string(mine, 0);
      auto strings = collect(mine, deadline);
      hand_out(strings, deadline);
      return strings;
    });
  }

 private:
  struct Guest {
    Socket socket;
    pid_t pid = 0;
    std::optional<std::string> said;  // its string, once it has come
  };
  Guest& guest(Rank rank) { return guests_[static_cast<size_t>(rank)]; }
  bool joined(Rank rank) { return rank >= 1 && rank < size_ && guest(rank).socket.open(); }

  std::vector<Rank> those(const std::function<bool(Rank)>& wanted) {
    std::vector<Rank> ranks;
    for (Rank r = 1; r < size_; ++r) {
      if (wanted(r)) ranks.push_back(r);
    }
    return ranks;
  }
  std::vector<Rank> missing() {
    return those([this](Rank r) { return !joined(r); });
  }

  // ---- errors
  // --------------------------------------------------------------------------------------------------------

  Error error(Code code, const std::string& what) const { return {code, "job '" + job_ + "': " + what}; }

  // "rank 1 (pid 5, alive but stopped), rank 2"; what the processes do is told of the first few.
  std::string in_words(const std::vector<Rank>& ranks) {
    constexpr size_t kTold = 8;
    std::string text;
    for (size_t i = 0; i < std::min(ranks.size(), kTold); ++i) {
      text += (i == 0 ? "rank " : ", rank ") + std::to_string(ranks[i]);
      if (const pid_t pid = guest(ranks[i]).pid; pid > 0) text += " (" + process_in_words(pid) + ")";
    }
    if (ranks.size() > kTold) text += ", rank " + list({ranks.begin() + kTold, ranks.end()});
    return text;
  }

  // Those who never came are named first: whoever came and left may have done so because of them.
  Error late() {
    const auto never = those([this](Rank r) { return !joined(r) && !left_.contains(r); });
    const auto left = those([this](Rank r) { return left_.contains(r); });
    std::string text = "rank 0 timed out waiting for " + in_words(never.empty() ? left : never);
    if (!never.empty() && !left.empty()) text += "; " + in_words(left) + " gave up earlier";
    if (never.empty()) text += ", which gave up earlier";
    return error(Code::timeout, text);
  }

  Error lost(Rank rank) {
    std::string text =
        "rank " + std::to_string(rank) + " (pid " + std::to_string(guest(rank).pid) + ") was lost while the ranks met";
    if (const auto others = missing(); !others.empty()) text += "; not there yet: " + in_words(others);
    settled_ = rank;
    return error(Code::peer_lost, text);
  }

  // Whatever error the body throws, the others hear of it.
  template <class Body>
  auto telling(Body&& body) -> decltype(body()) {
    try {
      return body();
    } catch (const Interrupted& interrupted) {
      tell_everybody(error(Code::aborted, std::string("rank 0 was ") + interrupted.what()));
      throw;
    } catch (const Error& failure) {
      tell_everybody(failure);
      if (settled_ && listener_.open()) tell_latecomers(failure);
      throw;
    }
  }

  void tell_everybody(const Error& failure) {
    for (const Guest& g : guests_) {
      if (g.socket.open()) tell(g.socket.fd(), failure);
    }
  }

  // Ranks are started at about the same time. One that finds nobody would wait for a rank 0 that has left already.
  void tell_latecomers(const Error& failure) {
    const Deadline until = Deadline::at(Deadline::Clock::now() + 300ms);
    auto waiting = missing();
    std::erase(waiting, *settled_);
    const auto told = [&](const Socket& newcomer) {
      pollfd fd{newcomer.fd(), POLLIN, 0};
      std::optional<Packet> packet;
      if (::poll(&fd, 1, 20) <= 0 || !receive(newcomer.fd(), packet) || !packet) return;
      if (packet->header.rank == *settled_) return;  // started again, for the next meeting
      tell(newcomer.fd(), failure);
      std::erase(waiting, packet->header.rank);
    };
    std::ranges::for_each(strangers_, told);
    while (!waiting.empty() && !until.passed()) {
      pollfd fd{listener_.fd(), POLLIN, 0};
      if (::poll(&fd, 1, slice(until)) <= 0) continue;
      if (const Socket newcomer = accept(); newcomer.open() && same_user(newcomer.fd())) told(newcomer);
    }
  }

  // ---- the meeting
  // ---------------------------------------------------------------------------------------------------

  void listen() {
    listener_ = new_socket();
    const Address address = address_of(job_);
    if (::bind(listener_.fd(), address.get(), address.length) != 0) {
      if (errno == EADDRINUSE) throw twin(address);
      socket_failure("cannot bind the socket of job '" + job_ + "'");
    }
    if (::listen(listener_.fd(), size_) != 0) socket_failure("listen");
    spare_ = new_socket();
  }

  Error twin(const Address& address) const {
    const Socket probe = new_socket();
    std::string who;
    if (connect_soon(probe.fd(), address.get(), address.length)) {
      who = " (pid " + std::to_string(other_end(probe.fd()).pid) + ")";
    }
    return error(
        Code::invalid_argument,
        "rank 0 is already there" + who + "; each rank of a job is started once, and each job needs a name of its own");
  }

  Socket accept() const { return Socket(accept_on(listener_.fd())); }

  // Waits a little for newcomers, introductions and departures.
  void wait(Deadline deadline) {
    std::vector<pollfd> fds{{listener_.fd(), POLLIN, 0}};
    for (Rank r = 1; r < size_; ++r) fds.push_back({guest(r).socket.fd(), POLLIN, 0});  // no descriptor: ignored
    for (const auto& [rank, process] : left_) fds.push_back({process.fd(), POLLIN, 0});
    for (const Socket& s : strangers_) fds.push_back({s.fd(), POLLIN, 0});
    if (poll_slice(fds, deadline) <= 0) return;
    const pollfd* came = &fds[1];
    std::vector<Rank> exited;
    for (Rank r = 1; r < size_; ++r, ++came) {
      if (came->revents != 0) hear(r);
    }
    for (const pollfd* end = &fds.back() + 1 - strangers_.size(); came != end; ++came) {
      if (came->revents != 0) exited.push_back(rank_behind(came->fd));
    }
    hear_strangers(came);
    if (fds[0].revents != 0) let_in();
    // A rank that is back has been let in before; one that has exited will not be.
    for (const Rank r : exited) {
      if (left_.contains(r)) throw gone_for_good(r);
    }
  }

  Rank rank_behind(int process) const {
    return std::ranges::find(left_, process, [](const auto& entry) { return entry.second.fd(); })->first;
  }

  Error gone_for_good(Rank rank) {
    left_.erase(rank);
    settled_ = rank;
    auto others = missing();
    std::erase(others, rank);
    return error(Code::timeout, in_words({rank}) + " gave up waiting for " +
                                    (others.empty() ? "the others" : in_words(others)) + ", and will not come back");
  }

  void hear_strangers(const pollfd* came) {
    // All of them are still strangers when one is refused, and are told why.
    std::vector<Socket> silent, speaking;
    for (Socket& s : strangers_) ((came++)->revents == 0 ? silent : speaking).push_back(std::move(s));
    const size_t quiet = silent.size();
    std::ranges::move(speaking, std::back_inserter(silent));
    strangers_ = std::move(silent);
    while (strangers_.size() > quiet) {
      Socket socket = std::move(strangers_.back());
      strangers_.pop_back();
      admit(std::move(socket));
    }
  }

  void let_in() {
    Socket newcomer = accept();
    if (!newcomer.open() && accepting_refused(errno)) {
      const std::string why = std::strerror(errno);
      spare_ = Socket();  // with its descriptor those who wait can be told
      settled_ = 0;
      throw error(Code::backend, "rank 0 cannot accept rank " + list(missing()) + ": " + why);
    }
    // Anybody on the host may connect to an abstract name; other users are hung up on without an answer.
    if (newcomer.open() && same_user(newcomer.fd())) strangers_.push_back(std::move(newcomer));
  }

  void admit(Socket socket) {
    std::optional<Packet> packet;
    if (!receive(socket.fd(), packet) || !packet || packet->header.kind != Header::hello) return;
    const Header& h = packet->header;
    if (const std::string wrong = mistake(h); !wrong.empty()) {
      const Error refusal = error(Code::invalid_argument, wrong);
      tell(socket.fd(), refusal);
      settled_ = h.rank;
      throw refusal;
    }
    if (send(socket.fd(), {.kind = Header::welcome, .pid = ::getpid()}) != Sent::yes) return;
    left_.erase(h.rank);
    guest(h.rank) = {std::move(socket), h.pid, {}};
  }

  std::string mistake(const Header& h) {
    const std::string rank = "rank " + std::to_string(h.rank);
    if (h.size != size_) {
      return rank + " was started with size " + std::to_string(h.size) + ", rank 0 with size " + std::to_string(size_);
    }
    if (h.rank < 1 || h.rank >= size_) return rank + " is not between 1 and " + std::to_string(size_ - 1);
    // A rank that is started again may come while its killed process is still ending.
    if (!joined(h.rank) || hangs_up_soon(guest(h.rank).socket.fd())) return "";
    return rank + " joined twice, from pid " + std::to_string(guest(h.rank).pid) + " and pid " + std::to_string(h.pid);
  }

  // What a guest has to say: its string, or that it leaves.
  void hear(Rank rank) {
    std::optional<Packet> packet;
    if (!receive(guest(rank).socket.fd(), packet)) throw lost(rank);
    if (!packet) return;
    if (packet->header.kind == Header::leave) return part_from(rank, code_of(packet->header));
    if (packet->header.kind != Header::data || guest(rank).said) throw lost(rank);
    guest(rank).said = std::move(packet->text);
  }

  // While ranks are still coming, one that leaves may come again; it hears whom it waited for.
  void part_from(Rank rank, Code why) {
    std::vector<Rank> waiting = listener_.open() ? missing() : waiting_;
    std::erase(waiting, rank);
    const std::string name = "rank " + std::to_string(rank);
    const Error reason =
        why == Code::timeout
            ? error(why, name + " timed out" +
                             (waiting.empty() ? " while the ranks met" : " waiting for " + in_words(waiting)))
            : error(Code::aborted, name + " was interrupted while the ranks met");
    if (!listener_.open()) throw reason;
    tell(guest(rank).socket.fd(), reason);
    const pid_t pid = other_end(guest(rank).socket.fd()).pid;
    left_[rank] = Socket(pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1);
    guest(rank).socket = Socket();
    guest(rank).said.reset();
  }

  // ---- allgather
  // -----------------------------------------------------------------------------------------------------

  std::vector<std::string> collect(std::string_view mine, Deadline deadline) {
    for (;;) {
      waiting_ = those([this](Rank r) { return !guest(r).said; });
      if (waiting_.empty()) break;
      if (deadline.passed()) throw error(Code::timeout, "rank 0 timed out waiting for " + in_words(waiting_));
      listen_to([](Rank) { return POLLIN; }, deadline);
    }
    std::vector<std::string> all{std::string(mine)};
    for (Rank r = 1; r < size_; ++r) {
      all.push_back(std::move(*guest(r).said));
      guest(r).said.reset();
    }
    return all;
  }

  // Nobody waits for a rank that does not read.
  void hand_out(const std::vector<std::string>& strings, Deadline deadline) {
    const std::string table = wire::pack_strings(strings);
    std::vector<std::string_view> left(static_cast<size_t>(size_), table);
    const auto unfinished = [&](Rank r) { return !left[static_cast<size_t>(r)].empty(); };
    for (;;) {
      for (Rank to = 1; to < size_; ++to) say(to, left[static_cast<size_t>(to)]);
      waiting_ = those(unfinished);
      if (waiting_.empty()) return;
      if (deadline.passed()) {
        throw error(Code::timeout,
                    "rank 0 timed out waiting for " + in_words(waiting_) + " to take what the ranks told each other");
      }
      listen_to([&](Rank r) { return unfinished(r) ? POLLIN | POLLOUT : 0; }, deadline);
    }
  }

  // Sends what a rank takes now, and removes it.
  void say(Rank to, std::string_view& text) {
    while (!text.empty()) {
      const std::string_view part = text.substr(0, kLargestString);
      const Header header{.kind = Header::data, .size = part.size() == text.size()};
      const Sent sent = send(guest(to).socket.fd(), header, part);
      if (sent == Sent::gone) hear(to);  // it may have said why
      if (sent == Sent::gone) throw lost(to);
      if (sent == Sent::not_yet) return;
      text.remove_prefix(part.size());
    }
  }

  // Waits a little for these events of each rank, none where it is 0, and hears whoever speaks.
  template <class Events>
  void listen_to(Events&& events, Deadline deadline) {
    std::vector<pollfd> fds;
    for (Rank r = 1; r < size_; ++r) {
      const auto wanted = static_cast<short>(events(r));
      fds.push_back({wanted == 0 ? -1 : guest(r).socket.fd(), wanted, 0});
    }
    if (poll_slice(fds, deadline) <= 0) return;
    for (Rank r = 1; r < size_; ++r) {
      if ((fds[static_cast<size_t>(r - 1)].revents & ~POLLOUT) != 0) hear(r);
    }
  }

  int size_;
  std::string job_;
  Socket listener_;                // until everybody is there
  Socket spare_;                   // so long; of no use but its descriptor
  std::vector<Socket> strangers_;  // connected, but have not said who they are
  std::vector<Guest> guests_;
  std::map<Rank, Socket> left_;  // those who gave up and may come again: their processes, as pidfds
  std::optional<Rank> settled_;  // the rank because of which this meeting fails; its next attempt is for another one
  std::vector<Rank> waiting_;    // for these, once everybody is there
};

}  // namespace

std::shared_ptr<Bootstrap> hub(int size, const std::string& job, Deadline deadline) {
  return std::make_shared<Hub>(size, job, deadline);
}

}  // namespace a2a::local
