// Tells runs to a peer: a single run in the line, several in a list in the segment of the rank that owns them.
#pragma once

#include <cstdint>
#include <span>

#include "transport/shm/ways/link.h"

namespace a2a::shm {

// Returns the place of this rank's run, as a peer needs it: an address for threads of one process and for CMA,
// otherwise an offset in the segment.
uint64_t place_of(const Link& link, const Run& run, Kind kind);

// Returns room for so many entries in this rank's segment, until the slots of this operation are used again.
ListedRun* new_list(const Link& link, size_t entries);
// Returns the list's place in the segment.
uint64_t place_of(const Link& link, const void* list);
// Lists runs of which some have gaps. Returns the list's place.
uint64_t list_blocks(const Link& link, std::span<const Run> runs, Kind kind);

// Fill in Pair::listed and Pair::remote from what a peer wrote, and check all of it before it is used.
void find_run(const Source& from, Kind kind, const ListedRun& run);
void find_runs(const Source& from, Kind kind, uint64_t list, size_t count, uint64_t bytes);
void find_blocks(const Source& from, Kind kind, uint64_t list, size_t count, uint64_t bytes);

}  // namespace a2a::shm
