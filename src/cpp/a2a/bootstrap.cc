#include "a2a/bootstrap.h"

#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "a2a/bootstrap_socket.h"

namespace a2a {

void socket_failure(const std::string& what) {
  throw Error(Code::backend, "bootstrap: " + what + ": " + std::strerror(errno));
}

int slice(Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.when() - Deadline::Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 20));
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

std::string list(const std::vector<Rank>& ranks) {
  std::string text;
  for (const Rank r : ranks) text += (text.empty() ? "" : ", ") + std::to_string(r);
  return text;
}

void check_membership(Rank rank, int size) {
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
