#include "a2a/bootstrap.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "bootstrap/sockets.h"

namespace a2a {

void socket_failure(const std::string& what) {
  throw Error(Code::backend, "bootstrap: " + what + ": " + std::strerror(errno));
}

int slice(Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.when() - Deadline::Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 20));
}

Remains which_remains(int first, int second) {
  constexpr int kMilliseconds = 500;  // a process that is killed may take so long to end on a loaded machine
  pollfd ends[] = {{first, POLLRDHUP, 0}, {second, POLLRDHUP, 0}};
  if (::poll(ends, 2, kMilliseconds) <= 0) return Remains::both;
  return ends[0].revents != 0 ? Remains::second : Remains::first;
}

bool connect_soon(int socket, const sockaddr* address, socklen_t length) {
  const auto patience = [&](suseconds_t micros) {
    const timeval limit{0, micros};
    ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  };
  patience(20'000);
  if (::connect(socket, address, length) != 0) return false;
  patience(0);
  return true;
}

int accept_on(int listener, sockaddr* from, socklen_t* length, bool nonblocking) {
  const int accepted = ::accept4(listener, from, length, SOCK_CLOEXEC | (nonblocking ? SOCK_NONBLOCK : 0));
  if (accepted >= 0 || (errno != ENOSYS && errno != EPERM)) return accepted;
  Socket socket(::accept(listener, from, length));
  if (!socket.open()) return -1;
  if (::fcntl(socket.fd(), F_SETFD, FD_CLOEXEC) != 0) return -1;
  if (nonblocking && ::fcntl(socket.fd(), F_SETFL, O_NONBLOCK) != 0) return -1;
  return socket.release();
}

bool accepting_refused(int error) {
  // The errors of accept() that concern a connection that is gone, by its manual.
  constexpr int kGone[] = {EAGAIN,    EINTR,  ECONNABORTED, EPROTO,     ENETDOWN,   ENOPROTOOPT,
                           EHOSTDOWN, ENONET, EHOSTUNREACH, EOPNOTSUPP, ENETUNREACH};
  return std::ranges::find(kGone, error) == std::end(kGone);
}

std::string list(const std::vector<Rank>& ranks) {
  std::string text;
  for (const Rank r : ranks) text += (text.empty() ? "" : ", ") + std::to_string(r);
  return text;
}

void check_rank_and_size(Rank rank, int size) {
  constexpr int kMost = 65536;
  if (size > kMost) {
    throw Error(Code::invalid_argument, "size = " + std::to_string(size) + " is more than " + std::to_string(kMost));
  }
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error(Code::invalid_argument, "rank = " + std::to_string(rank) + " and size = " + std::to_string(size) +
                                            " do not satisfy 0 <= rank < size");
  }
}

}  // namespace a2a
