// The order in which a rank sends to its peers. The transports between hosts use it, and so does the simulator.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "a2a/types.h"

namespace a2a {

// The most sends of a rank that are in flight at a time. A send to a rank that is busy does not hold up the others.
inline constexpr int kSendWindow = 32;

// Returns the peers to which the rank sends, in order: bytes[r] go to rank r, and a rank with none is left out. The
// longest come first, because a long send that begins late ends late. Sends of similar lengths, within a factor of
// eight, are in the order of the rotation, in which each rank has one sender at a time.
A2A_API std::vector<Rank> send_order(Rank rank, std::span<const uint64_t> bytes);

}  // namespace a2a
