// Where ranks that share CPUs run.
#pragma once

#include <span>

#include "transport/shm/protocol/layout.h"

namespace a2a::shm {

// Publishes the CPU that this thread runs on.
void announce_cpu(SeatWords& seat);

// Whether both ran on one CPU when they last said so.
bool on_same_cpu(const SeatWords& a, const SeatWords& b);

// Moves the calling thread to the CPU, among those allowed to it, with the fewest ranks, if its own has at least two
// more; of several ranks on one CPU the last one moves. seats[rank] belongs to the caller; empty ones are skipped. The
// set of allowed CPUs is as before afterwards: the kernel may move the thread again whenever it sees a reason. Returns
// whether it moved.
bool spread(std::span<const SeatWords* const> seats, size_t rank);

}  // namespace a2a::shm
