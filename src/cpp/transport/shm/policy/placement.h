// Moves ranks that share CPUs apart.
#pragma once

#include <span>

#include "transport/shm/protocol/layout.h"

namespace a2a::shm {

// Publishes the CPU that the calling thread runs on.
void announce_cpu(SeatWords& seat);

// Whether both announced the same CPU last.
bool on_same_cpu(const SeatWords& a, const SeatWords& b);

// Moves the calling thread to the allowed CPU with the fewest ranks, if its own has at least two more. Of several ranks
// on one CPU the last one moves. seats[rank] belongs to the caller; null entries are skipped. Restores the affinity
// mask, so the kernel may move the thread again. Returns whether the thread moved.
bool spread(std::span<const SeatWords* const> seats, size_t rank);

}  // namespace a2a::shm
