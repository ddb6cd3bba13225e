// Whose process is at the other end of a Unix socket, and what the kernel's word on that is worth. Not public.
#pragma once

#include <sys/socket.h>

#include <string>

namespace a2a {

// As the kernel says (SO_PEERCRED): pid 0 when that process cannot be seen from here.
ucred other_end(int socket);

// Whether the other end has this user's id. Where ids do not tell users apart, that proves nothing.
bool same_user(int socket);

// Whether processes with this user's id are this user's. A user namespace shows every user that it does not map under
// one id, the overflow id, and a process may have that id itself: as the user "nobody" of a container, or because
// nobody has mapped its own. To such a process any stranger looks like itself, and any stranger's file like its own.
bool ids_tell_users_apart();

// What ranks have to prove that they know instead: the secret of A2A_SECRET. Throws Error(unsupported) with advice
// where there is none.
std::string secret_instead_of_ids();

}  // namespace a2a
