// The transport of host memory for a group, wherever its ranks live.
#pragma once

#include <memory>

#include "a2a/bootstrap.h"
#include "a2a/transport.h"

namespace a2a::hosts {

// Collective over the bootstrap: shared memory where all ranks live on one host, otherwise shared memory on each and
// the bootstrap's network between them, which is made only then. Throws Error(unsupported) when ranks live on several
// hosts and there is none.
std::unique_ptr<HostTransport> connect(Rank rank, int size, Bootstrap& bootstrap, Deadline deadline);

}  // namespace a2a::hosts
