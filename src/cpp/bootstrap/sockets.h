// What the bootstraps over sockets have in common. Not public.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "a2a/types.h"
#include "runtime/descriptor.h"

namespace a2a {

using Socket = Descriptor;

// Throws Error(backend) with what errno says.
[[noreturn]] void socket_failure(const std::string& what);

// A descriptor of the next connection, with close-on-exec and, if wanted, not blocking; -1, with errno. Some sandboxes
// refuse accept4() and have accept().
int accept_on(int listener, sockaddr* from = nullptr, socklen_t* length = nullptr, bool nonblocking = false);

// Whether such an errno says that this process cannot accept, rather than that nobody was there in the end.
bool accepting_refused(int error);

// Milliseconds for poll(): short, because the callers look at several things in turn.
int slice(Deadline deadline);

// connect() for a Unix socket, but only for a moment: the queue in front of the other end may be full of others, and
// stay so. False, with errno, when it did not come about (EAGAIN: the queue).
bool connect_soon(int socket, const sockaddr* address, socklen_t length);

// Whether the other end is gone, or goes in the next moments: a process that was killed takes a while to end.
bool hangs_up_soon(int socket);

// "1, 2, 5"
std::string list(const std::vector<Rank>& ranks);

// How long somebody who waits for rank 0 goes on after his deadline: rank 0 knows who is missing, and may be about to
// say so.
inline constexpr int kGraceMilliseconds = 100;

// Error(invalid_argument) unless 0 <= rank < size, and size is one that a group can have.
void check_membership(Rank rank, int size);

}  // namespace a2a
