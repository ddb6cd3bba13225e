// Bootstraps: the exchange of small byte strings by which ranks find each other before any transport exists.
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

// A rank's number in its group, and how many ranks the group has.
struct GroupRank {
  Rank rank = 0;
  int size = 1;
};

// An exchange of strings between the ranks of a group. Every rank calls allgather the same number of times; each call
// returns all ranks' strings in rank order. Implementations: those below, and any Python object with an allgather
// method.
class A2A_API Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual std::vector<std::string> allgather(std::string_view mine, Deadline deadline) = 0;
  // Transports call it every few milliseconds while they wait for ranks that have met through this bootstrap to
  // connect. It may throw an Error to give up; the other ranks then get that error.
  virtual void while_meeting() {}
  // Whether it can connect ranks on several hosts. Without a network all ranks have to be on one host.
  virtual bool has_network() const { return false; }
  // Collective. Returns the network that connects the ranks. nullptr: there is none.
  virtual std::shared_ptr<hosts::Network> network(Deadline) { return nullptr; }
  // Returns each rank's process of that network, by rank. Empty: rank r is process r.
  virtual std::vector<int> processes() const { return {}; }
  // Returns the name of this rank's host, if the bootstrap knows better than A2A_HOSTS and the kernel. Ranks of one
  // name share memory.
  virtual std::optional<std::string> host() const { return std::nullopt; }
  // Whether some ranks may have met before. Then they use the connections and mappings that they still have. The same
  // on all ranks.
  virtual bool met_before() const { return false; }
  // Returns this rank's number and the number of ranks where the caller did not choose them: of mpi_bootstrap().
  // Otherwise nothing.
  virtual std::optional<GroupRank> group_rank() const { return std::nullopt; }
};

// Ranks are processes of one host that know a common job name (A2A_JOB). Rank 0 listens on an abstract Unix socket
// named after the job and the user; the others connect to it. Processes of other users are refused. In a user namespace
// that shows other users under this user's id, user ids do not tell whose a process is; there all ranks have to know
// the secret of A2A_SECRET (docs/guide/security.md). Throws Error(timeout) naming the missing ranks,
// Error(invalid_argument) when a rank joins twice or with another size, Error(unsupported) when that secret is needed
// and missing. A rank that has given up may try again with the same name: it meets the others once all of them try.
// Waits check signals (a2a::SignalWatch).
A2A_API std::shared_ptr<Bootstrap> unix_bootstrap(Rank rank, int size, const std::string& job, Deadline deadline);

// Ranks are on any hosts. Rank 0 listens at `address`, "host:port" or "[IPv6]:port", on the interface of that address
// alone and only until all ranks have connected; without a host it is 127.0.0.1. The others connect to it and try again
// until the deadline. Both ends prove that they know `secret`, at least 16 bytes, and every later message carries a
// MAC; nothing is encrypted (docs/guide/security.md). One string is at most 16 MiB, all of an allgather 256 MiB. Its
// network() connects all ranks with each other, at the addresses from which they connect to rank 0.
//
// Throws what unix_bootstrap does, and Error(invalid_argument) when rank 0 serves another job, does not know the
// secret, or cannot have the address; Error(unsupported) when a rank runs another version. allgather throws
// Error(peer_lost) naming the rank that died. After an error of allgather every later call on any rank throws, too.
// Waits check signals (a2a::SignalWatch).
A2A_API std::shared_ptr<Bootstrap> tcp_bootstrap(Rank rank, int size, const std::string& job,
                                                 const std::string& address, std::string_view secret,
                                                 Deadline deadline);

// Returns the launcher's notice of a rank that has ended and will not be started again, such as "rank 2 exited with
// code 0", in a job of that name and size. Returns nullopt when there is none, the launcher gives no notices, or they
// are about another job, because another launcher has started these ranks inside it.
A2A_API std::optional<std::string> ended_rank(const std::string& job, int size);

// Returns the secret in the file that A2A_SECRET_FILE names, without white space at its end, or else the one in
// A2A_SECRET. The file has to belong to this user, and nobody else may open it. Throws Error(invalid_argument) when
// there is no secret, when both variables are set, or when the file belongs or may belong to another user, or is open
// to others. No message shows the secret.
A2A_API std::string secret_from_environment();

// Ranks are the processes of MPI_COMM_WORLD, or of the communicator with this Fortran handle (MPI_Comm_c2f; mpi4py:
// comm.py2f()), in its order. Loads MPI while the program runs, and initialises it if nobody did before; then it is
// finalised when the process ends. Collective over that communicator. For each group of processes the first
// communicator is duplicated, and the duplicate is kept until the process ends; the communicator may be freed at any
// time. Ranks that give the same name meet. The bootstraps of one name are made in the same order on all ranks.
//
// Throws Error(unsupported) when there is no usable MPI, naming every place it was looked for in, or when MPI was
// finalised; Error(invalid_argument) when the handle is not that of an intracommunicator, as far as MPI can tell;
// Error(timeout) when not all processes come, and then the next call for the same processes goes on. Only
// MPI_Init_thread has no time limit. Waits check signals (a2a::SignalWatch).
A2A_API std::shared_ptr<Bootstrap> mpi_bootstrap(std::optional<int> fortran_handle = {}, const std::string& name = "",
                                                 Deadline deadline = Deadline::never());

// Ranks are threads of this process: element r is for the thread that is rank r.
A2A_API std::vector<std::shared_ptr<Bootstrap>> thread_bootstraps(int size);

}  // namespace a2a
