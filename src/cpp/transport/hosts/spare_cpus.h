// Whether ranks have CPUs to spare, for their progress threads.
#pragma once

#include <cstddef>

namespace a2a::hosts {

// Returns the number of CPUs of this machine, which may exceed those allowed to this process.
size_t cpus_of_machine();

// Whether each of so many ranks has a CPU besides its own.
inline bool has_spare_cpus(size_t ranks, size_t cpus) { return 2 * ranks <= cpus; }

}  // namespace a2a::hosts
