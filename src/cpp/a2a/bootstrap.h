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
// Implementations: those below, and any Python object with an allgather method.
class A2A_API Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual std::vector<std::string> allgather(std::string_view mine, Deadline deadline) = 0;
  // Called every few milliseconds while a transport waits for ranks that have met through this bootstrap to connect.
  // May throw an Error to give up, which the others then hear of.
  virtual void while_meeting() {}
  // Whether it can connect ranks that live on several hosts. Otherwise they all have to live on one.
  virtual bool has_network() const { return false; }
  // Collective: what connects them, where rank r is process r of it.
  virtual std::shared_ptr<hosts::Network> network(Deadline) { return nullptr; }
};

// Ranks as processes of one host that know nothing but a common job name (A2A_JOB). Rank 0 listens on an abstract Unix
// socket named after the job and the user; the others connect to it. Processes of other users are refused. Where user
// ids do not tell whose a process is, in a user namespace that shows others under this user's id, all have to know the
// secret of A2A_SECRET (docs/security.md). Throws Error(timeout) naming the ranks that did not come,
// Error(invalid_argument) when a rank joins twice or with another size, Error(unsupported) without that secret.
// A rank that has given up may try again, with the same name: it meets the others once all of them try. Waits look at
// signals (a2a::SignalWatch).
A2A_API std::shared_ptr<Bootstrap> unix_bootstrap(Rank rank, int size, const std::string& job, Deadline deadline);

// Ranks on any hosts. Rank 0 listens at `address`, "host:port" or "[IPv6]:port", on the interface of that address alone
// and only until all ranks are there; without a host it is 127.0.0.1. The others connect to it and try again until the
// deadline. Both ends prove that they know `secret`, at least 16 bytes, and every later message carries a MAC; nothing
// is encrypted (docs/security.md). One string is at most 16 MiB, all of an allgather 256 MiB. Its network() connects
// all ranks with each other, at the addresses from which they talk to rank 0.
//
// Throws what unix_bootstrap does, and Error(invalid_argument) when rank 0 serves another job, does not know the
// secret, or cannot have the address; Error(unsupported) when a rank runs another version. allgather throws
// Error(peer_lost) naming the rank that died. After an error of allgather every later call on any rank throws, too.
// Waits look at signals (a2a::SignalWatch).
A2A_API std::shared_ptr<Bootstrap> tcp_bootstrap(Rank rank, int size, const std::string& job,
                                                 const std::string& address, std::string_view secret,
                                                 Deadline deadline);

// The secret that A2A_SECRET_FILE leads to, a file that nobody but its owner, this user, may open (white space at its
// end does not count), or else that A2A_SECRET holds. Throws Error(invalid_argument) when there is none, when both are
// set, or when the file is or may be anybody else's, or is open to others; no message shows the secret.
A2A_API std::string secret_from_environment();

// The ranks of MPI_COMM_WORLD, or of the communicator with this Fortran handle (MPI_Comm_c2f; mpi4py: comm.py2f()). MPI
// is loaded while the program runs, and initialised if nobody did before; then it is finalised when the process ends.
// Collective over that communicator, whose processes are the ranks, in its order. For each group of processes the first
// communicator is duplicated, and the duplicate kept until the process ends; the communicator may be freed at any time.
// Ranks that give the same name meet; those of one name are made in the same order everywhere.
//
// Throws Error(unsupported) when there is no usable MPI, with every place where it was looked for, or it was finalised;
// Error(invalid_argument) when the handle is not that of an intracommunicator, as far as MPI can tell; Error(timeout)
// when not all processes come, and then the next call for the same processes goes on. Only MPI_Init_thread cannot be
// bounded. Waits look at signals (a2a::SignalWatch).
A2A_API std::shared_ptr<Bootstrap> mpi_bootstrap(std::optional<int> fortran_handle = {}, const std::string& name = "",
                                                 Deadline deadline = Deadline::never());

// Ranks as threads of this process: element r belongs to the thread that is rank r.
A2A_API std::vector<std::shared_ptr<Bootstrap>> thread_bootstraps(int size);

}  // namespace a2a
