// Finds an address at which rank 0 can listen.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "check.h"

inline std::string free_address() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(at);
  auto* raw = reinterpret_cast<sockaddr*>(&at);
  CHECK(::bind(fd, raw, length) == 0 && ::getsockname(fd, raw, &length) == 0);
  ::close(fd);
  return "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
}
