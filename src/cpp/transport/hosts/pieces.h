// Transfers of memory with gaps: packed, a piece at a time.
#pragma once

#include <memory>
#include <span>

#include "core/schedule.h"
#include "transport/hosts/network.h"

namespace a2a::hosts {

// Begin a transfer. Both ends cut the bytes of all runs alike, whatever the runs are. Only a few pieces are packed at a
// time. The runs and the network must outlive the transfer.
std::unique_ptr<Transfer> send_in_pieces(Network& network, Process to, uint32_t tag, std::span<const Run> runs);
std::unique_ptr<Transfer> receive_in_pieces(Network& network, Process from, uint32_t tag, std::span<const Run> runs);

}  // namespace a2a::hosts
