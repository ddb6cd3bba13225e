// Runs as one rank tells another of them: one stands in the line, several in a list in the segment of the rank whose
// runs they are.
#pragma once

#include <cstdint>
#include <span>

#include "transport/shm/ways/link.h"

namespace a2a::shm {

// Where a run of this rank stands for a peer: an address where both are threads of one process, or the kernel copies;
// an offset of the segment otherwise.
uint64_t place_of(const Link& link, const Run& run, Kind kind);

// Room for so many entries in this rank's segment, until the slots of this operation are used again.
ListedRun* new_list(const Link& link, size_t entries);
// The list's own place in the segment.
uint64_t place_of(const Link& link, const void* list);
// Lists runs of which some have gaps. Returns the list's place.
uint64_t list_blocks(const Link& link, std::span<const Run> runs, Kind kind);

// Fills in Pair::listed and Pair::remote from what a peer says of its memory, which is checked before any of it is
// used.
void find_run(const Link& link, Kind kind, const ListedRun& run);
void find_runs(const Link& link, Kind kind, uint64_t list, size_t count, uint64_t bytes);
void find_blocks(const Link& link, Kind kind, uint64_t list, size_t count, uint64_t bytes);

}  // namespace a2a::shm
