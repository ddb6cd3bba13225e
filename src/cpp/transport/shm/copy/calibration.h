// What is cheaper on this machine, measured.
#pragma once

#include <cstddef>

namespace a2a::shm {

// Less always goes through chunks.
inline constexpr size_t kLeastCalibrated = size_t{512} << 10;

// From how many bytes on one copy by process_vm_readv takes less time of the CPU than two copies through chunks
// that stay in the caches: the kernel looks up every page and copies in its own way, which is good on some processors
// and slow on others. SIZE_MAX where it does not up to 1 MiB, or where it cannot be measured. A process measures once,
// for some milliseconds: the time of the CPU, so that others who use it do not count.
size_t cma_pays_from();

// Whether that call is much slower when the target stands a few bytes further in its page than the source, as with the
// `rep movsb` of AMD's processors (docs/performance.md). A process measures once, for some milliseconds.
bool cma_stumbles();

// Whether `rep movsb` copies what the second-level cache holds faster than a loop with vectors: by a hundredth or more
// wherever the two places stand in their pages, and nowhere slower; with the target just behind the source, where some
// processors are ten times slower, at least not much slower, or it is left to the loop there. A process measures once,
// for a millisecond; A2A_SHM_REP_MOVSB decides without that.
enum class StringCopies { unknown, slower, faster_but_just_behind, faster };
StringCopies string_copies();
// Whether a sender's copy into memory whose lines are in the receiver's cache takes less time that way.
bool string_puts_pay();

}  // namespace a2a::shm
