// The libraries of vendors and of MPI, which are loaded while the program runs.
#pragma once

#include <optional>
#include <string>

#include "a2a/types.h"

namespace a2a {

// What serves this kind of device memory here, with its version; and which MPI there is between hosts, which is not
// initialised by that. Throw Error(unsupported) that lists where they were looked for.
A2A_API std::string library_for(Memory memory);
A2A_API std::string mpi_library();

// A directory in which later searches look, such as one of a Python environment's packages. Safe from any thread.
A2A_API void add_library_directory(const std::string& directory);

// The index of the device in whose memory the pointer lies; nothing for any other memory. Throws what library_for()
// does.
A2A_API std::optional<int> device_of(Memory memory, const void* pointer);

}  // namespace a2a
