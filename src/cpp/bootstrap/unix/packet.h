// The packets that ranks of one host send each other over the Unix socket of their job. Not public.
#pragma once

#include <sys/un.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "a2a/bootstrap.h"
#include "bootstrap/sockets.h"

namespace a2a::local {

inline constexpr uint32_t kMagic = 0x61326103;  // bump it when packets change
inline constexpr size_t kLargestString = size_t{64} << 10;

// The packets between rank 0 and a rank R that has connected:
//
//   R -> 0  hello    rank, size
//   0 -> R  welcome
//   R -> 0  data     its string of an allgather
//   0 -> R  data     all ranks' strings, as wire::pack_strings() packs them, in as many packets as needed; `size` is 1
//                    in the last one
//   R -> 0  leave    it has given up; `size` has the code of its error
//   0 -> R  refusal  an error, whose code is in `size`; nothing follows
struct Header {
  uint32_t magic = kMagic;
  enum Kind : uint32_t { hello, welcome, refusal, data, leave } kind = data;
  int32_t rank = 0;  // of the sender
  int32_t size = 0;
  int32_t pid = 0;
};

struct Packet {
  Header header;
  std::string text;  // at most kLargestString bytes
};

// Throws Error(invalid_argument) for a string that exceeds a packet.
void check_string(std::string_view mine, Rank rank);

struct UnixAddress {
  sockaddr_un raw{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&raw); }
};

// name_of() returns the abstract name of a job's socket. Nothing is left of it in any file system.
std::string name_of(const std::string& job);
UnixAddress address_of(const std::string& job);

// Returns a Unix socket for packets.
Socket new_socket();

// send(), send_refusal() and receive() never block.
enum class Sent { yes, not_yet, gone };
Sent send(int fd, const Header& header, std::string_view text = {});
inline void send_refusal(int fd, const Error& error) {
  send(fd, {.kind = Header::refusal, .size = static_cast<int32_t>(error.code())}, error.what());
}
// Receives a packet. Returns false when the other end hung up or sent something else; true without a packet when none
// has come.
bool receive(int fd, std::optional<Packet>& packet);

// Returns the code of an error that came in a packet.
Code code_of(const Header& header);

std::shared_ptr<Bootstrap> hub(int size, const std::string& job, Deadline deadline);
std::shared_ptr<Bootstrap> spoke(Rank rank, int size, const std::string& job, Deadline deadline);

}  // namespace a2a::local
