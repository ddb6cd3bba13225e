// The network that MPI is.
#pragma once

#include <memory>
#include <optional>

#include "transport/hosts/network.h"

namespace a2a::mpi {

// The network over a duplicate of the communicator with this Fortran handle, or of MPI_COMM_WORLD. Collective over it
// when called for the first time; later calls with the same handle give the same network. It lasts until the process
// ends, and is finalised then if MPI was initialised here and nothing was left unfinished.
std::shared_ptr<hosts::Network> network(std::optional<int> fortran_handle);

}  // namespace a2a::mpi
