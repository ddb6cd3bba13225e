// The frames that two connected processes send each other; each has a head and a body. They are neither encrypted nor
// authenticated; see docs/design/security.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace a2a::tcp {

enum class FrameKind : uint32_t {
  message = 1,  // the body is a message
  ready,        // no body: a receive with this tag waits for `bytes` bytes (credit)
  memory,       // the body is the next part of a send with this tag, within the credit
  goodbye,      // no body: this process leaves in order, and nothing follows
  withdrawn,    // no body: receives with this tag were withdrawn; nothing was sent for them
};

// All hosts have the same byte order: ranks compare the version of this library when they meet.
struct Head {
  FrameKind kind = FrameKind::message;
  uint32_t tag = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(Head) == 16);

inline constexpr size_t kMostMessage = size_t{1} << 30;
// The most bytes of a part of memory. A message may be sent between two parts, so messages never wait for long.
inline constexpr size_t kPart = size_t{256} << 10;
// The most tags of one process with receives announced and nothing sent.
inline constexpr size_t kMostAnnounced = size_t{1} << 20;

}  // namespace a2a::tcp
