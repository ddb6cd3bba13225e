// How ranks find each other: an exchange of small byte strings before any transport exists.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "a2a/types.h"

namespace a2a {

namespace hosts {
class Network;
}

// Every rank of the group calls allgather the same number of times; each call returns all ranks' strings in rank order.
// Implementations: the two below, and any Python object with an allgather method.
class A2A_API Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual std::vector<std::string> allgather(std::string_view mine, Deadline deadline) = 0;
  // Called every few milliseconds while a transport waits for ranks that have met through this bootstrap to connect.
  // May throw an Error to give up, which the others then hear of.
  virtual void while_meeting() {}
  // What connects the processes of ranks on several hosts, where rank r is process r of it. Nothing: they all have to
  // live on one host.
  virtual std::shared_ptr<hosts::Network> network() const { return nullptr; }
};

// Ranks as processes of one host that know nothing but a common job name (A2A_JOB). Rank 0 listens on an abstract Unix
// socket named after the job and the user; the others connect to it. Processes of other users are refused. Throws
// Error(timeout) naming the ranks that did not come, Error(invalid_argument) when a rank joins twice or with another
// size.
A2A_API std::shared_ptr<Bootstrap> unix_bootstrap(Rank rank, int size, const std::string& job, Deadline deadline);

// The ranks of MPI_COMM_WORLD, or of the communicator with this Fortran handle (MPI_Comm_c2f; mpi4py: comm.py2f()). MPI
// is loaded while the program runs, and initialised if nobody did before; then it is finalised when the process ends.
// Collective over that communicator, which is duplicated. Its processes are the ranks, in its order. Throws
// Error(unsupported) when there is no usable MPI, with every place where it was looked for.
A2A_API std::shared_ptr<Bootstrap> mpi_bootstrap(std::optional<int> fortran_handle = {});

// Ranks as threads of this process: element r belongs to the thread that is rank r.
A2A_API std::vector<std::shared_ptr<Bootstrap>> thread_bootstraps(int size);

}  // namespace a2a
