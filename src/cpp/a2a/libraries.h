// The libraries of vendors and of MPI, which are loaded while the program runs.
#pragma once

#include <optional>
#include <string>

#include "a2a/types.h"

namespace a2a {

// library_for() returns the vendor's library for this kind of device memory, with its version; mpi_library() returns
// the MPI for ranks on several hosts, and does not initialise it; ucx_library() returns the UCX for them. All throw
// Error(unsupported) that lists where they looked.
A2A_API std::string library_for(Memory memory);
A2A_API std::string mpi_library();
A2A_API std::string ucx_library();

// Returns which network ranks on several hosts would use, and why: A2A_NETWORK, or the devices of this host. Throws
// Error(invalid_argument) for another value of that variable.
A2A_API std::string network_choice();

// Returns whether each of so many ranks on each of these hosts, which may use so many CPUs, gets a progress thread, and
// why. Throws Error(invalid_argument) for a wrong A2A_PROGRESS_THREAD.
A2A_API std::string progress_thread_choice(int ranks, int cpus, int hosts);

// Adds a directory for later searches, such as one of a Python environment's packages. Any thread may call it.
A2A_API void add_library_directory(const std::string& directory);

// Returns the index of the device to whose memory the pointer points; nothing for any other memory. Throws what
// library_for() does.
A2A_API std::optional<int> device_of(Memory memory, const void* pointer);

}  // namespace a2a
