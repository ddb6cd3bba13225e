// What ranks of one host say to each other over the Unix socket of their job: one packet at a time. Not public.
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

inline constexpr uint32_t kMagic = 0x61326103;  // changes with what packets mean
inline constexpr size_t kLargestString = size_t{64} << 10;

// R being a rank that has connected to rank 0:
//
//   R -> 0  hello    rank, size
//   0 -> R  welcome
//   R -> 0  data     its string of an allgather
//   0 -> R  data     everybody's strings, as wire::pack_strings() has them, in as many packets as it takes; `size` is 1
//                    in the last one
//   R -> 0  leave    it has given up; the code of its error stands in `size`
//   0 -> R  refusal  an error, whose code stands in `size`, after which nothing follows
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

// Throws Error(invalid_argument) for a string that no packet holds.
void check_string(std::string_view mine, Rank rank);

struct Address {
  sockaddr_un raw{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&raw); }
};

// The meeting place of a job: an abstract name, so that nothing is left in any file system.
std::string name_of(const std::string& job);
Address address_of(const std::string& job);

// Never blocks.
Socket new_socket();

// Neither of these blocks.
enum class Sent { yes, not_yet, gone };
Sent send(int fd, const Header& header, std::string_view text = {});
inline void tell(int fd, const Error& error) {
  send(fd, {.kind = Header::refusal, .size = static_cast<int32_t>(error.code())}, error.what());
}
// False when the other end hung up or spoke nonsense. No packet, and true, when there is none yet.
bool receive(int fd, std::optional<Packet>& packet);

// The code of an error that came in a packet.
Code code_of(const Header& header);

std::shared_ptr<Bootstrap> hub(int size, const std::string& job, Deadline deadline);
std::shared_ptr<Bootstrap> spoke(Rank rank, int size, const std::string& job, Deadline deadline);

}  // namespace a2a::local
