#include "bootstrap/user.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>

#include "a2a/bootstrap.h"
#include "bootstrap/secret.h"
#include "bootstrap/sockets.h"

namespace a2a {
namespace {

// Whether this user namespace maps every user of the host.
bool all_users_mapped() {
  constexpr uint64_t kUsers = UINT32_MAX;  // the last number is no user's
  std::ifstream map("/proc/self/uid_map");
  uint64_t inside = 0, outside = 0, ids = 0, mapped = 0;
  while (map >> inside >> outside >> ids) mapped += ids;
  return mapped == kUsers;
}

}  // namespace

ucred peer_credentials(int socket) {
  ucred who{};
  socklen_t length = sizeof(who);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) socket_failure("SO_PEERCRED");
  return who;
}

bool same_user(int socket) { return peer_credentials(socket).uid == ::geteuid(); }

bool ids_tell_users_apart() {
  uid_t overflow = 0;
  errno = 0;
  const bool known = static_cast<bool>(std::ifstream("/proc/sys/kernel/overflowuid") >> overflow);
  if (!known && (errno == EMFILE || errno == ENFILE)) socket_failure("cannot look up the overflow id of users");
  return (known && ::geteuid() != overflow) || all_users_mapped();
}

std::string secret_instead_of_ids() {
  const char* text = std::getenv("A2A_SECRET");
  const char* path = std::getenv("A2A_SECRET_FILE");
  if ((text == nullptr || *text == '\0') && (path == nullptr || *path == '\0')) {
    throw Error(Code::unsupported,
                "user " + std::to_string(::geteuid()) +
                    " of this user namespace is also what users look like that the namespace does not map, so that "
                    "nobody can tell whose process is at the other end of a Unix socket: start the ranks with a2a run, "
                    "set A2A_SECRET to one secret for all of them (openssl rand -hex 32), or run as another user");
  }
  std::string secret = secret_from_environment();
  check_secret(secret);
  return secret;
}

}  // namespace a2a
