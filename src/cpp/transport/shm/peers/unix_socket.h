// Unix sockets on which ranks of one host meet: small messages, with file descriptors.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "a2a/types.h"
#include "runtime/object_bytes.h"
#include "transport/shm/memory/arena.h"

namespace a2a::shm {

// Throws Error(backend) with the text of errno.
[[noreturn]] void system_failure(const std::string& what);

// Listens on an abstract name that the kernel picks.
class Listener {
 public:
  explicit Listener(int backlog);
  int fd() const { return socket_.fd(); }
  const std::string& name() const { return name_; }  // without its leading zero
  // Returns the next connection; an empty one when it was closed meanwhile.
  Descriptor accept();

 private:
  Descriptor socket_;
  std::string name_;
};

// Returns a connection to the listener of that name. Returns an empty one, with errno, when nobody listens there, or
// its queue stays full for a moment (EAGAIN).
Descriptor connect_to_listener(std::string_view name);

// Sends one message, with at most two descriptors. Never blocks: the few messages of a meeting fit into any socket's
// buffer. Returns false when the other end is gone.
bool send_message(int socket, std::string_view bytes, std::span<const int> fds = {});

// Receives one message of exactly `bytes` bytes, with its descriptors if any come. Returns false when the other end
// hung up or sent something else, such as a longer message. Throws Error(backend) when this process cannot open the
// descriptors that are asked for.
bool receive_bytes(int socket, void* to, size_t bytes, Descriptor* first, Descriptor* second);

template <class T>
bool try_send(int socket, const T& value, std::span<const int> fds = {}) {
  static_assert(std::is_trivially_copyable_v<T>);
  return send_message(socket, object_bytes(value), fds);
}

template <class T>
std::optional<T> receive_message(int socket, Descriptor* first = nullptr, Descriptor* second = nullptr) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  if (!receive_bytes(socket, &value, sizeof(T), first, second)) return std::nullopt;
  return value;
}

}  // namespace a2a::shm
