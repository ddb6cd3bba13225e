// Measures which ways of copying are cheaper on this machine.
#pragma once

#include <cstddef>

namespace a2a::shm {

// Fewer bytes always go through chunks.
inline constexpr size_t kLeastCalibrated = size_t{512} << 10;

// Returns the number of bytes from which on one copy by process_vm_readv takes less CPU time than two copies through
// chunks that stay in the caches. The kernel looks up every page and has its own copy loop, which is slow on some
// processors. SIZE_MAX where CMA is not faster up to 1 MiB, or cannot be measured. A process measures once. It measures
// CPU time, so that other users of the CPU do not count.
size_t cma_pays_from();

// Whether process_vm_readv is much slower when the target is a few bytes further in its page than the source, as with
// `rep movsb` on AMD's processors (benchmarks/notes/learned.md). A process measures once.
bool cma_stumbles();

}  // namespace a2a::shm
