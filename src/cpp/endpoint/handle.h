// What an endpoint's handle says. Not public.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "bootstrap/tcp/tcp_socket.h"

namespace a2a::endpoint {

using Id = std::array<uint8_t, 16>;  // random; tells endpoints apart

std::string text_of(const Id& id);  // 32 hexadecimal digits

struct Handle {
  Id id{};
  uint32_t pid = 0;
  std::string node;       // the host's name, for the texts of errors
  std::string network;    // the network namespace of a Unix socket
  SocketAddress address;  // where it listens

  bool on_unix() const { return address.raw.ss_family == AF_UNIX; }
  // "pid 4711 on node7"
  std::string in_words() const { return "pid " + std::to_string(pid) + " on " + node; }
};

// The text has a MAC, which needs the secret; without one it only shows that the text was not changed.
std::string pack(const Handle& handle, std::string_view secret);
// Throws Error(invalid_argument), with `what` as its beginning, when the text is no handle of this version, or was made
// with another secret.
Handle unpack(const std::string& text, std::string_view secret, const std::string& what);

// Returns what a connection to that endpoint proves to know.
std::string key_of(const Handle& handle, std::string_view secret);

// The longest text of a handle.
inline constexpr size_t kLongestHandle = 2048;

}  // namespace a2a::endpoint
