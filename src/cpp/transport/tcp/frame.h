// What two connected processes send each other: frames, each a head and its body. Not encrypted and not authenticated;
// see docs/security.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace a2a::tcp {

enum class FrameKind : uint32_t {
  message = 1,  // the body is a message
  ready,        // no body: the memory of a receive with this tag waits for `bytes`
  memory,       // the body is the next part of what was sent with this tag, never more than was waited for
  goodbye,      // no body: this process leaves in order, and nothing follows
  withdrawn,    // no body: nothing waits for this tag any more, and nothing was sent with it since all was received
};

// All hosts have one byte order: ranks compare the version of this library when they meet.
struct Head {
  FrameKind kind = FrameKind::message;
  uint32_t tag = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(Head) == 16);

inline constexpr size_t kMostMessage = size_t{1} << 30;
// A part of memory, after which a message may go first: so that few bytes never wait for long.
inline constexpr size_t kPart = size_t{256} << 10;
// Messages of one process that have arrived and that nobody here has taken.
inline constexpr size_t kMostUntaken = size_t{2} << 30;
// Tags of one process for which it has announced receives that nobody here has sent to.
inline constexpr size_t kMostAnnounced = size_t{1} << 20;

}  // namespace a2a::tcp
