// Finds the secret of a job. No error text contains it, or a part of it.
#include "bootstrap/secret.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "a2a/bootstrap.h"
#include "bootstrap/sockets.h"
#include "bootstrap/user.h"

namespace a2a {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(Code::invalid_argument, "A2A_SECRET_FILE=" + path + ": " + why);
}

std::string read_secret(const std::string& path) {
  // Opens first and checks then, so that the checked file is the one that is read. A pipe must not block.
  const Socket file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status{};
  if (!file.open() || ::fstat(file.fd(), &status) != 0) refuse(path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse(path, "is not a file");
  if (status.st_uid != ::geteuid()) refuse(path, "belongs to user " + std::to_string(status.st_uid));
  if (!ids_tell_users_apart()) {
    refuse(path, "belongs to user " + std::to_string(status.st_uid) +
                     ", as a file of any user does that this user namespace does not map; pass the secret itself in "
                     "A2A_SECRET, or run as another user");
  }
  if ((status.st_mode & 077) != 0) refuse(path, "others may open it; chmod 600");
  std::string text(kLongestSecret + 1, '\0');
  const ssize_t got = ::read(file.fd(), text.data(), text.size());
  if (got < 0) refuse(path, std::strerror(errno));
  text.resize(static_cast<size_t>(got));
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

}  // namespace

std::string secret_from_environment() {
  const char* path = std::getenv("A2A_SECRET_FILE");
  const char* text = std::getenv("A2A_SECRET");
  const bool by_file = path != nullptr && *path != '\0', by_text = text != nullptr && *text != '\0';
  if (by_file && by_text) {
    throw Error(Code::invalid_argument, "both A2A_SECRET_FILE and A2A_SECRET are set; keep one of them");
  }
  if (by_file) return read_secret(path);
  if (by_text) return text;
  throw Error(
      Code::invalid_argument,
      "ranks that meet over TCP need a common secret: set A2A_SECRET_FILE to a file of mode 600 with at least " +
          std::to_string(kShortestSecret) + " bytes (openssl rand -hex 32), or A2A_SECRET to the secret itself");
}

void check_secret(std::string_view secret) {
  if (secret.size() >= kShortestSecret && secret.size() <= kLongestSecret) return;
  throw Error(Code::invalid_argument, "the secret has " + std::to_string(secret.size()) + " bytes; " +
                                          std::to_string(kShortestSecret) + " to " + std::to_string(kLongestSecret) +
                                          " are accepted");
}

}  // namespace a2a
