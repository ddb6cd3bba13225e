#include "bootstrap/tcp/tcp_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "a2a/work.h"
#include "runtime/background.h"

namespace a2a {
namespace {

using namespace std::chrono_literals;

sockaddr* raw(SocketAddress& socket_address) { return reinterpret_cast<sockaddr*>(&socket_address.raw); }
const sockaddr* raw(const SocketAddress& socket_address) {
  return reinterpret_cast<const sockaddr*>(&socket_address.raw);
}

void set(int fd, int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof(value)); }

// Few messages are sent, and a rank waits for each, so none is delayed. Keepalive notices after half a minute that the
// host of a silent peer is gone.
void make_prompt(int fd) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

[[noreturn]] void refuse_address(const std::string& address, const std::string& why) {
  throw Error(Code::invalid_argument, "address '" + address + "': " + why);
}

SocketAddress abstract_address(std::string_view name) {
  SocketAddress socket_address;
  auto& local = reinterpret_cast<sockaddr_un&>(socket_address.raw);
  local.sun_family = AF_UNIX;
  const size_t bytes = name.copy(local.sun_path + 1, sizeof(local.sun_path) - 1);
  socket_address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  return socket_address;
}

bool is_wildcard(const SocketAddress& socket_address) {
  if (socket_address.raw.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(socket_address.raw).sin_addr.s_addr == htonl(INADDR_ANY);
  }
  const in6_addr& ip = reinterpret_cast<const sockaddr_in6&>(socket_address.raw).sin6_addr;
  const bool mapped =
      IN6_IS_ADDR_V4MAPPED(&ip) && std::all_of(ip.s6_addr + 12, ip.s6_addr + 16, [](auto b) { return b == 0; });
  return IN6_IS_ADDR_UNSPECIFIED(&ip) || mapped;
}

struct Answer {
  int failed = 0;  // of getaddrinfo
  int error = 0;   // errno, where that is EAI_SYSTEM
  std::vector<SocketAddress> addresses;
};

Answer look_up(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  Answer answer;
  answer.failed = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  answer.error = errno;
  if (answer.failed != 0) return answer;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    SocketAddress& socket_address = answer.addresses.emplace_back();
    std::memcpy(&socket_address.raw, a->ai_addr, a->ai_addrlen);
    socket_address.length = a->ai_addrlen;
  }
  ::freeaddrinfo(found);
  return answer;
}

// Looks the name up in a thread: getaddrinfo() may wait for a silent name server beyond any deadline, and cannot be
// interrupted.
Answer ask_resolver(const std::string& address, const std::string& host, const std::string& port, Deadline deadline) {
  const auto look = [&] {
    SignalWatch::look();
    if (deadline.passed()) {
      throw Error(Code::timeout, "address '" + address + "': timed out looking up the name; no name server answered");
    }
  };
  return in_background<Answer>([host, port] { return look_up(host, port, 0); }, [](const Answer&) {}, look);
}

}  // namespace

std::string SocketAddress::host() const {
  char text[NI_MAXHOST] = "?";
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&raw), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

std::vector<SocketAddress> resolve_to_listen(const std::string& address, Deadline deadline) {
  const bool has_port = address.find(':') != std::string::npos && address.back() != ']';
  return resolve(has_port ? address : address + ":0", deadline, 0);
}

std::vector<SocketAddress> resolve(const std::string& address, Deadline deadline, int least_port) {
  if (address.starts_with('@')) return {abstract_address(std::string_view(address).substr(1))};
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) refuse_address(address, "has no port; it is host:port");
  std::string host = address.substr(0, colon), port = address.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    refuse_address(address, "an IPv6 address stands in brackets: [" + host + "]:" + port);
  }
  const bool number = !port.empty() && port.size() <= 5 &&
                      std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!number || std::stoi(port) < least_port || std::stoi(port) > 65535) {
    refuse_address(address, "the port is " + std::to_string(least_port) + " to 65535");
  }
  if (host.find('\0') != std::string::npos) refuse_address(address, "the host has a zero byte");

  if (host.empty()) host = "127.0.0.1";
  Answer answer = look_up(host, port, AI_NUMERICHOST);
  if (answer.failed == EAI_NONAME) answer = ask_resolver(address, host, port, deadline);
  if (answer.failed != 0) {
    refuse_address(address, answer.failed == EAI_SYSTEM ? std::strerror(answer.error) : ::gai_strerror(answer.failed));
  }
  if (std::ranges::any_of(answer.addresses, is_wildcard)) {
    refuse_address(address, "means every interface; give the address at which the other ranks reach rank 0");
  }
  return std::move(answer.addresses);
}

SocketAddress local_address(int fd) {
  SocketAddress socket_address;
  socket_address.length = sizeof(socket_address.raw);
  if (::getsockname(fd, raw(socket_address), &socket_address.length) != 0) socket_failure("getsockname");
  return socket_address;
}

Socket listen_at(const std::vector<SocketAddress>& candidates, const std::string& address, const std::string& who) {
  // A rank that tries to reach rank 0 on its own host may be connected to itself for a moment (see connecting_failed),
  // and then has the port.
  const auto until = Deadline::after_seconds(0.5);
  for (;;) {
    for (const SocketAddress& candidate : candidates) {
      Socket listener(::socket(candidate.raw.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!listener.open()) continue;
      set(listener.fd(), SOL_SOCKET, SO_REUSEADDR, 1);  // the kernel keeps connections of the last meeting
      if (::bind(listener.fd(), raw(candidate), candidate.length) == 0 && ::listen(listener.fd(), SOMAXCONN) == 0) {
        return listener;
      }
      if (errno == EADDRINUSE) break;  // the others try this address first, so the next one would not help
    }
    if (errno != EADDRINUSE || until.passed()) break;
    std::this_thread::sleep_for(20ms);
  }
  if (errno == EADDRINUSE) refuse_address(address, "the port is in use, perhaps by " + who + " of another job");
  if (errno == EADDRNOTAVAIL) refuse_address(address, "this host, " + who + "'s, has no such address");
  refuse_address(address, who + " cannot listen there: " + std::strerror(errno));
}

Socket begin_connecting(const SocketAddress& socket_address) {
  Socket socket(::socket(socket_address.raw.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.open()) return socket;
  make_prompt(socket.fd());
  // The kernel may give this client the port at which rank 0 of a job will listen. A closed connection would keep that
  // port for a minute.
  set(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (::connect(socket.fd(), raw(socket_address), socket_address.length) != 0 && errno != EINPROGRESS) return Socket();
  return socket;
}

int connecting_failed(const Socket& socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  if (error != 0) return error;
  // If no process listens on a port of this host that is also in the kernel's range for clients, a client may be
  // connected to itself.
  const SocketAddress self = local_address(socket.fd());
  SocketAddress other;
  other.length = sizeof(other.raw);
  if (::getpeername(socket.fd(), raw(other), &other.length) != 0) return errno;
  if (self.length != other.length || std::memcmp(&self.raw, &other.raw, self.length) != 0) return 0;
  const linger reset{1, 0};  // an orderly close would keep rank 0 from the port for a minute
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  return ECONNREFUSED;
}

Socket accept_from(const Socket& listener, SocketAddress& from) {
  from.length = sizeof(from.raw);
  Socket socket(accept_on(listener.fd(), raw(from), &from.length, true));
  if (socket.open()) make_prompt(socket.fd());
  return socket;
}

int poll_slice(std::span<pollfd> fds, Deadline deadline) {
  // SignalWatch::look() may be slow in a language binding, so it is not called every time. It must be called even if
  // events always come.
  static thread_local Deadline next_look = Deadline::at({});
  if (next_look.passed()) {
    SignalWatch::look();
    next_look = Deadline::after_seconds(0.02);
  }
  return ::poll(fds.data(), fds.size(), slice(deadline));
}

bool await(int fd, short events, Deadline until, const std::function<void()>& meanwhile) {
  pollfd one{fd, events, 0};
  while (poll_slice({&one, 1}, until) <= 0) {
    if (meanwhile) meanwhile();
    if (until.passed()) return false;
  }
  return true;
}

wire::Nonce new_nonce() {
  wire::Nonce nonce;
  if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) socket_failure("getrandom");
  return nonce;
}

bool read_some(int fd, size_t most, std::string& bytes) {
  if (most == 0) return true;
  const size_t before = bytes.size();
  bytes.resize(before + most);
  ssize_t got = 0;
  do {
    got = ::recv(fd, bytes.data() + before, most, 0);
  } while (got < 0 && errno == EINTR);
  bytes.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
}

bool write_some(int fd, std::string& bytes) {
  if (bytes.empty()) return true;
  ssize_t sent = 0;
  do {
    sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent > 0) bytes.erase(0, static_cast<size_t>(sent));
  return sent >= 0 || errno == EAGAIN || errno == EWOULDBLOCK;
}

std::optional<wire::Frame> Channel::read() {
  if (auto frame = opener_.next()) return frame;
  if (forged() || gone_) return std::nullopt;
  std::string bytes;
  gone_ = !read_some(fd(), opener_.room(), bytes);
  opener_.feed(bytes);
  return opener_.next();
}

}  // namespace a2a
