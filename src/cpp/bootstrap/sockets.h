// Functions that the bootstraps over sockets share. Not public.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "a2a/types.h"
#include "runtime/descriptor.h"

namespace a2a {

using Socket = Descriptor;

// Throws Error(backend) with the text of errno.
[[noreturn]] void socket_failure(const std::string& what);

// Returns a descriptor of the next connection, close-on-exec and, if asked for, nonblocking; -1, with errno. Uses
// accept() in sandboxes that refuse accept4().
int accept_on(int listener, sockaddr* from = nullptr, socklen_t* length = nullptr, bool nonblocking = false);

// Whether this errno means that the process cannot accept, rather than that the connection is gone.
bool accepting_refused(int error);

// Returns a timeout for poll() in milliseconds: short, because the callers check several things in turn.
int slice(Deadline deadline);

// connect() for a Unix socket, with a short timeout: connections of other processes may fill the queue for ever.
// Returns false, with errno, when it failed (EAGAIN: the queue is full).
bool connect_soon(int socket, const sockaddr* address, socklen_t length);

// Of two connections of one rank, says which one remains. Waits up to half a second for one of them to hang up: a rank
// that was killed takes a while to end, and may have been started again by then.
enum class Remains { first, second, both };
Remains which_remains(int first, int second);

// "1, 2, 5"
std::string list(const std::vector<Rank>& ranks);

// How long a rank that waits for rank 0 continues after its deadline: rank 0 knows which ranks are missing, and may be
// about to send that.
inline constexpr int kGraceMilliseconds = 100;

// Throws Error(invalid_argument) unless 0 <= rank < size, and a group can have that size.
void check_rank_and_size(Rank rank, int size);

}  // namespace a2a
