#include "bootstrap/unix/packet.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>

namespace a2a::local {

void check_string(std::string_view mine, Rank rank) {
  if (mine.size() <= kLargestString) return;
  throw Error(Code::invalid_argument, "rank " + std::to_string(rank) + " has a string of " +
                                          std::to_string(mine.size()) + " bytes; at most " +
                                          std::to_string(kLargestString) + " are exchanged");
}

std::string name_of(const std::string& job) {
  std::string name = "a2a-" + std::to_string(::geteuid()) + "-" + job;
  constexpr size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;
  if (name.size() > kLongest) {  // keeps its beginning for people; two hashes make it unique
    const std::hash<std::string> hash;
    name = name.substr(0, 50) + "-" + std::to_string(hash(job)) + "-" + std::to_string(hash(job + job));
    name.resize(std::min(name.size(), kLongest));
  }
  return name;
}

UnixAddress address_of(const std::string& job) {
  const std::string name = name_of(job);
  UnixAddress address;
  address.raw.sun_family = AF_UNIX;
  name.copy(address.raw.sun_path + 1, name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Socket new_socket() {
  Socket socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.open()) socket_failure("no Unix socket");
  return socket;
}

Sent send(int fd, const Header& header, std::string_view text) {
  iovec parts[2] = {{const_cast<Header*>(&header), sizeof(header)}, {const_cast<char*>(text.data()), text.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return Sent::yes;
  return errno == EAGAIN || errno == EWOULDBLOCK ? Sent::not_yet : Sent::gone;
}

bool receive(int fd, std::optional<Packet>& packet) {
  packet.reset();
  std::string buffer(sizeof(Header) + kLargestString, '\0');
  ssize_t got = 0;
  do {
    got = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT | MSG_TRUNC);  // returns the packet's own length
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));  // a reset is reported once, before the last packets
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
  if (got < static_cast<ssize_t>(sizeof(Header)) || got > static_cast<ssize_t>(buffer.size())) return false;
  Packet came;
  std::memcpy(&came.header, buffer.data(), sizeof(Header));
  if (came.header.magic != kMagic) return false;
  came.text = buffer.substr(sizeof(Header), static_cast<size_t>(got) - sizeof(Header));
  packet = std::move(came);
  return true;
}

Code code_of(const Header& header) {
  const int code = header.size;
  const bool known = code >= static_cast<int>(Code::invalid_argument) && code <= static_cast<int>(Code::backend);
  return known ? static_cast<Code>(code) : Code::backend;
}

}  // namespace a2a::local
