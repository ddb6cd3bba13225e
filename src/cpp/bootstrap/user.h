// Identifies the user at the other end of a Unix socket. Not public.
#pragma once

#include <sys/socket.h>

#include <string>

namespace a2a {

// Returns the kernel's credentials of the other end (SO_PEERCRED). pid is 0 when that process is not visible from here.
ucred peer_credentials(int socket);

// Whether the other end has this user's id. That proves nothing unless ids_tell_users_apart().
bool same_user(int socket);

// Whether all processes with this user's id belong to this user. A user namespace shows all users that it does not map
// with one id, the overflow id. A process may have that id itself: as the user "nobody" of a container, or because its
// own id is not mapped. Then it cannot tell other users' processes and files from its own.
bool ids_tell_users_apart();

// Returns the secret of A2A_SECRET, which ranks then have to prove to know. Throws Error(unsupported), with advice,
// where there is none.
std::string secret_instead_of_ids();

}  // namespace a2a
