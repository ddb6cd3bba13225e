#include "transport/shm/peers/unix_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "bootstrap/sockets.h"

namespace a2a::shm {

void system_failure(const std::string& what) {
  throw Error(Code::backend, "shared memory: " + what + ": " + std::strerror(errno));
}

Listener::Listener(int backlog) : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socklen_t length = sizeof(sa_family_t);  // nothing but the family: the kernel picks a free abstract name
  if (socket_.fd() < 0 || ::bind(socket_.fd(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(socket_.fd(), backlog) != 0) {
    system_failure("cannot listen on a Unix socket");
  }
  length = sizeof(address);
  ::getsockname(socket_.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  name_.assign(address.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1);
}

Descriptor Listener::accept() {
  Descriptor socket(accept_on(socket_.fd()));
  if (socket.fd() < 0 && errno != ECONNABORTED && errno != EINTR) system_failure("cannot accept a rank's connection");
  return socket;
}

Descriptor connect_to_listener(std::string_view name) {
  Descriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (made.fd() < 0) system_failure("no socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t bytes = name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  return connect_soon(made.fd(), reinterpret_cast<const sockaddr*>(&address), length) ? std::move(made) : Descriptor();
}

bool send_message(int socket, std::string_view bytes, std::span<const int> fds) {
  iovec data{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(bytes.size());
}

bool receive_bytes(int socket, void* to, size_t bytes, Descriptor* first, Descriptor* second) {
  iovec data{to, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  int fds[2] = {-1, -1};
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(fds, CMSG_DATA(header), std::min(header->cmsg_len - CMSG_LEN(0), sizeof(fds)));
  }
  Descriptor one(fds[0]), two(fds[1]);
  if (got != static_cast<ssize_t>(bytes) || (message.msg_flags & MSG_TRUNC) != 0) return false;
  if (first != nullptr && (message.msg_flags & MSG_CTRUNC) != 0) {
    if (two.open()) return false;  // there are more of them
    errno = EMFILE;                // the kernel does not say why it opened fewer than there was room for
    system_failure("cannot take a descriptor from another rank");
  }
  if (first != nullptr) *first = std::move(one);
  if (second != nullptr) *second = std::move(two);
  return true;
}

}  // namespace a2a::shm
