#include "bootstrap/ended_ranks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "a2a/types.h"
#include "bootstrap/sockets.h"
#include "runtime/environment.h"

namespace a2a {
namespace {

// Returns the file's text, or "" when it cannot be read: the ranks then wait until their deadline.
std::string contents_of(const std::string& path) {
  const Socket file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat facts{};
  if (!file.open() || ::fstat(file.fd(), &facts) != 0 || !S_ISREG(facts.st_mode)) return {};
  constexpr off_t kMost = off_t{4} << 20;
  std::string text(static_cast<size_t>(std::clamp<off_t>(facts.st_size, 0, kMost)), '\0');
  const ssize_t got = ::pread(file.fd(), text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

}  // namespace

std::optional<std::string> ended_rank(const std::string& job, int size) {
  const auto path = variable("A2A_ENDED");
  if (!path) return std::nullopt;
  std::istringstream lines(contents_of(*path));
  std::string line;
  std::getline(lines, line);
  const std::string own = std::to_string(size) + " " + job;
  if (line.empty() || (own != line && !own.starts_with(line + "#"))) return std::nullopt;
  if (!std::getline(lines, line)) return std::nullopt;
  if (line.starts_with("launcher: ") && !std::getline(lines, line)) return std::nullopt;
  return "rank " + line;
}

std::string ended_rank_text(const std::string& ended, const std::string& job) {
  return "job '" + job + "': " + ended + " before all ranks had joined";
}

void require_all_running(const std::string& job, int size) {
  if (const auto ended = ended_rank(job, size)) throw Error(Code::peer_lost, ended_rank_text(*ended, job));
}

}  // namespace a2a
