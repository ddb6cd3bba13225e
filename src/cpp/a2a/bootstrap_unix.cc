// Ranks as processes of one host: over an abstract Unix socket.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <iterator>
#include <optional>
#include <thread>

#include "a2a/bootstrap.h"
#include "a2a/bootstrap_socket.h"
#include "a2a/ended_ranks.h"
#include "a2a/process.h"

namespace a2a {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kMagic = 0x61326102;  // changes with the messages below
constexpr size_t kLargestString = size_t{64} << 10;

// Every message is one packet: this header and at most kLargestString bytes.
struct Header {
  uint32_t magic = kMagic;
  enum Kind : uint32_t { hello, welcome, refusal, data } kind = data;
  int32_t rank = 0;  // of the sender, or whose string this is
  int32_t size = 0;
  int32_t pid = 0;
};

struct Message {
  Header header;
  std::string text;
};

Socket new_socket() {
  Socket socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.open()) socket_failure("no Unix socket");
  return socket;
}

struct Address {
  sockaddr_un raw{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&raw); }
};

// The meeting place of a job: an abstract name, so that nothing is left in any file system.
Address address_of(const std::string& job) {
  std::string name = "a2a-" + std::to_string(::geteuid()) + "-" + job;
  constexpr size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;
  if (name.size() > kLongest) {  // keep its beginning for whoever looks at it, tell it apart by two hashes
    const std::hash<std::string> hash;
    name = name.substr(0, 50) + "-" + std::to_string(hash(job)) + "-" + std::to_string(hash(job + job));
    name.resize(std::min(name.size(), kLongest));
  }
  Address address;
  address.raw.sun_family = AF_UNIX;
  name.copy(address.raw.sun_path + 1, kLongest);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

ucred other_end(int fd) {
  ucred who{};
  socklen_t length = sizeof(who);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) socket_failure("SO_PEERCRED");
  return who;
}

bool send(int fd, Header header, std::string_view text = {}) {
  iovec parts[2] = {{&header, sizeof(header)}, {const_cast<char*>(text.data()), text.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  return ::sendmsg(fd, &message, MSG_NOSIGNAL) >= 0;
}

// The next message, which must be there or on its way. Nothing when the other end hung up or spoke nonsense.
std::optional<Message> receive(int fd) {
  std::string buffer(sizeof(Header) + kLargestString, '\0');
  ssize_t got = 0;
  do {
    got = ::recv(fd, buffer.data(), buffer.size(), 0);
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));  // a reset is reported once, before the last words
  Message message;
  if (got < static_cast<ssize_t>(sizeof(Header))) return std::nullopt;
  std::memcpy(&message.header, buffer.data(), sizeof(Header));
  if (message.header.magic != kMagic) return std::nullopt;
  message.text = buffer.substr(sizeof(Header), static_cast<size_t>(got) - sizeof(Header));
  return message;
}

// Rank 0: listens until everybody is there, then collects and hands out.
class Hub final : public Bootstrap {
 public:
  Hub(int size, const std::string& job, Deadline deadline)
      : size_(size), job_(job), guests_(static_cast<size_t>(size)) {
    listener_ = new_socket();
    const Address address = address_of(job);
    if (::bind(listener_.fd(), address.get(), address.length) != 0) {
      if (errno == EADDRINUSE) report_twin(address);
      socket_failure("cannot bind the socket of job '" + job + "'");
    }
    if (::listen(listener_.fd(), size) != 0) socket_failure("listen");
    spare_ = new_socket();
    while (!missing().empty()) {
      if (deadline.passed()) late(missing());
      if (const auto ended = ended_rank(job_, size_)) give_up(Code::peer_lost, in_words(*ended, job_));
      wait(deadline);
    }
    strangers_.clear();
    listener_ = Socket();
    spare_ = Socket();
  }

  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override {
    std::vector<std::string> all(static_cast<size_t>(size_));
    all[0] = mine;
    std::vector<Rank> waiting;
    for (Rank r = 1; r < size_; ++r) waiting.push_back(r);
    while (!waiting.empty()) {
      if (deadline.passed()) late(waiting);
      collect(waiting, all, deadline);
    }
    for (Rank to = 1; to < size_; ++to) {
      for (Rank of = 0; of < size_; ++of) {
        if (!send(guest(to).socket.fd(), {.kind = Header::data, .rank = of}, all[static_cast<size_t>(of)])) lost(to);
      }
    }
    return all;
  }

 private:
  struct Guest {
    Socket socket;
    pid_t pid = 0;
  };
  Guest& guest(Rank rank) { return guests_[static_cast<size_t>(rank)]; }

  bool joined(Rank rank) { return rank >= 1 && rank < size_ && guest(rank).socket.open(); }

  std::vector<Rank> missing() {
    std::vector<Rank> ranks;
    for (Rank r = 1; r < size_; ++r) {
      if (!joined(r)) ranks.push_back(r);
    }
    return ranks;
  }

  [[noreturn]] void lost(Rank rank) {
    give_up(Code::peer_lost, "job '" + job_ + "': rank " + std::to_string(rank) + " (pid " +
                                 std::to_string(guest(rank).pid) + ") was lost while the ranks met");
  }

  [[noreturn]] void give_up(Code code, const std::string& text) {
    tell_everybody(code, text);
    tell_latecomers(code, text, 0);
    throw Error(code, text);
  }

  [[noreturn]] void late(const std::vector<Rank>& ranks) {
    std::string who;
    for (const Rank r : ranks) {
      who += (who.empty() ? "rank " : ", rank ") + std::to_string(r);
      if (guest(r).pid > 0) who += " (" + process_in_words(guest(r).pid) + ")";
    }
    const std::string text = "job '" + job_ + "': rank 0 timed out waiting for " + who;
    tell_everybody(Code::timeout, text);
    throw Error(Code::timeout, text);
  }

  void tell_everybody(Code code, const std::string& text) {
    for (Guest& g : guests_) {
      if (g.socket.open()) send(g.socket.fd(), {.kind = Header::refusal, .size = static_cast<int32_t>(code)}, text);
    }
  }

  // Ranks are started at about the same time. One that finds nobody would wait for a rank 0 that has left already.
  // `told` of those who are missing have heard it.
  void tell_latecomers(Code code, const std::string& text, size_t told) {
    const Deadline deadline = Deadline::at(Deadline::Clock::now() + 300ms);
    const Header refusal{.kind = Header::refusal, .size = static_cast<int32_t>(code)};
    for (const Socket& stranger : strangers_) send(stranger.fd(), refusal, text);
    for (told += strangers_.size(); told < missing().size() && !deadline.passed();) {
      pollfd fd{listener_.fd(), POLLIN, 0};
      if (::poll(&fd, 1, slice(deadline)) <= 0) continue;
      const Socket newcomer(accept_on(listener_.fd()));
      if (!newcomer.open() && accepting_refused(errno)) return;
      if (!newcomer.open() || other_end(newcomer.fd()).uid != ::geteuid()) continue;
      send(newcomer.fd(), refusal, text);
      ++told;
    }
  }

  [[noreturn]] void report_twin(const Address& address) {
    const Socket probe = new_socket();
    std::string who;
    if (connect_soon(probe.fd(), address.get(), address.length)) {
      who = " (pid " + std::to_string(other_end(probe.fd()).pid) + ")";
    }
    throw Error(Code::invalid_argument,
                "job '" + job_ + "': rank 0 is already there" + who +
                    "; each rank of a job is started once, and each job needs a name of its own");
  }

  // Waits a little for newcomers, introductions and departures.
  void wait(Deadline deadline) {
    std::vector<pollfd> fds{{listener_.fd(), POLLIN, 0}};
    for (const Socket& s : strangers_) fds.push_back({s.fd(), POLLIN, 0});
    std::vector<Rank> present;
    for (Rank r = 1; r < size_; ++r) {
      if (!guest(r).socket.open()) continue;
      present.push_back(r);
      fds.push_back({guest(r).socket.fd(), POLLRDHUP, 0});
    }
    if (::poll(fds.data(), fds.size(), slice(deadline)) <= 0) return;
    for (size_t i = 0; i < present.size(); ++i) {
      if ((fds[1 + strangers_.size() + i].revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0) lost(present[i]);
    }
    // All of them are still strangers when one is refused, and are told why.
    std::vector<Socket> speaking;
    for (size_t i = strangers_.size(); i > 0; --i) {
      if (fds[i].revents == 0) continue;
      speaking.push_back(std::move(strangers_[i - 1]));
      strangers_.erase(strangers_.begin() + static_cast<ptrdiff_t>(i) - 1);
    }
    const size_t silent = strangers_.size();
    std::ranges::move(speaking, std::back_inserter(strangers_));
    while (strangers_.size() > silent) {
      Socket socket = std::move(strangers_.back());
      strangers_.pop_back();
      admit(std::move(socket));
    }
    if (fds[0].revents == 0) return;
    Socket newcomer(accept_on(listener_.fd()));
    if (!newcomer.open() && accepting_refused(errno)) {
      const std::string why = std::strerror(errno);
      spare_ = Socket();  // with its descriptor those who wait can be told
      give_up(Code::backend, "job '" + job_ + "': rank 0 cannot accept rank " + list(missing()) + ": " + why);
    }
    // Anybody on the host may connect to an abstract name; other users are hung up on without an answer.
    if (newcomer.open() && other_end(newcomer.fd()).uid == ::geteuid()) strangers_.push_back(std::move(newcomer));
  }

  void admit(Socket socket) {
    const auto message = receive(socket.fd());
    if (!message || message->header.kind != Header::hello) return;
    const Header& h = message->header;
    std::string wrong;
    if (h.size != size_) {
      wrong = "rank " + std::to_string(h.rank) + " was started with size " + std::to_string(h.size) +
              ", rank 0 with size " + std::to_string(size_);
    } else if (h.rank < 1 || h.rank >= size_) {
      wrong = "rank " + std::to_string(h.rank) + " is not between 1 and " + std::to_string(size_ - 1);
    } else if (joined(h.rank)) {
      wrong = "rank " + std::to_string(h.rank) + " joined twice, from pid " + std::to_string(guest(h.rank).pid) +
              " and pid " + std::to_string(h.pid);
    }
    if (!wrong.empty()) {
      wrong = "job '" + job_ + "': " + wrong;
      send(socket.fd(), {.kind = Header::refusal, .size = static_cast<int32_t>(Code::invalid_argument)}, wrong);
      tell_everybody(Code::invalid_argument, wrong);
      tell_latecomers(Code::invalid_argument, wrong, joined(h.rank) ? 0 : 1);
      throw Error(Code::invalid_argument, wrong);
    }
    if (send(socket.fd(), {.kind = Header::welcome, .pid = ::getpid()})) guest(h.rank) = {std::move(socket), h.pid};
  }

  void collect(std::vector<Rank>& waiting, std::vector<std::string>& all, Deadline deadline) {
    std::vector<pollfd> fds;
    for (const Rank r : waiting) fds.push_back({guest(r).socket.fd(), POLLIN, 0});
    if (::poll(fds.data(), fds.size(), slice(deadline)) <= 0) return;
    std::vector<Rank> still;
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (fds[i].revents == 0) {
        still.push_back(waiting[i]);
        continue;
      }
      auto message = receive(fds[i].fd);
      if (!message) lost(waiting[i]);
      all[static_cast<size_t>(waiting[i])] = std::move(message->text);
    }
    waiting = std::move(still);
  }

  int size_;
  std::string job_;
  Socket listener_;                // until everybody is there
  Socket spare_;                   // so long; of no use but its descriptor
  std::vector<Socket> strangers_;  // connected, but have not said who they are
  std::vector<Guest> guests_;
};

// The other ranks.
class Spoke final : public Bootstrap {
 public:
  Spoke(Rank rank, int size, const std::string& job, Deadline deadline) : rank_(rank), size_(size), job_(job) {
    const Address address = address_of(job);
    while (!join(address, deadline)) {
      if (deadline.passed()) {
        throw Error(Code::timeout, "job '" + job + "': rank " + std::to_string(rank) + " timed out waiting for rank 0");
      }
      require_all_running(job, size);
      std::this_thread::sleep_for(2ms);
    }
  }

  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override {
    if (!send(socket_.fd(), {.kind = Header::data, .rank = rank_}, mine)) {
      next(socket_, deadline);  // rank 0 may have said why it left
      lost();
    }
    std::vector<std::string> all;
    while (all.size() < static_cast<size_t>(size_)) {
      auto message = next(socket_, deadline);
      if (!message || message->header.kind != Header::data) lost();
      all.push_back(std::move(message->text));
    }
    return all;
  }

 private:
  // Whether rank 0 welcomed this rank. It may not be there yet, or be just leaving an earlier meeting of the same name.
  bool join(const Address& address, Deadline deadline) {
    Socket socket = new_socket();
    if (!connect_soon(socket.fd(), address.get(), address.length)) return false;
    if (other_end(socket.fd()).uid != ::geteuid()) {
      throw Error(Code::unsupported, "job '" + job_ + "': a process of another user holds this job's name");
    }
    const Header hello{.kind = Header::hello, .rank = rank_, .size = size_, .pid = ::getpid()};
    send(socket.fd(), hello);  // where that fails, rank 0 may have left with a word why
    const auto message = next(socket, deadline);
    if (!message) return false;
    socket_ = std::move(socket);
    return message->header.kind == Header::welcome;
  }

  // The next message from rank 0. Throws what it says when it is an error, and when the deadline passes.
  std::optional<Message> next(const Socket& socket, Deadline deadline) {
    pollfd fd{socket.fd(), POLLIN, 0};
    while (::poll(&fd, 1, slice(deadline)) <= 0) {
      if (deadline.passed() && ::poll(&fd, 1, kGraceMilliseconds) <= 0) {
        throw Error(Code::timeout,
                    "job '" + job_ + "': rank " + std::to_string(rank_) + " timed out waiting for rank 0 (" +
                        process_in_words(other_end(socket.fd()).pid) + ") to say that all ranks are there");
      }
    }
    auto message = receive(socket.fd());
    if (message && message->header.kind == Header::refusal) {
      const int code = message->header.size;
      const bool known = code >= static_cast<int>(Code::invalid_argument) && code <= static_cast<int>(Code::backend);
      throw Error(known ? static_cast<Code>(code) : Code::backend, message->text);
    }
    return message;
  }

  [[noreturn]] void lost() { throw Error(Code::peer_lost, "job '" + job_ + "': rank 0 was lost while the ranks met"); }

  Rank rank_;
  int size_;
  std::string job_;
  Socket socket_;
};

}  // namespace

std::shared_ptr<Bootstrap> unix_bootstrap(Rank rank, int size, const std::string& job, Deadline deadline) {
  check_membership(rank, size);
  if (size == 1) return thread_bootstraps(1)[0];
  if (rank == 0) return std::make_shared<Hub>(size, job, deadline);
  return std::make_shared<Spoke>(rank, size, job, deadline);
}

}  // namespace a2a
