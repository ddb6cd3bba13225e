#include "core/record_file.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>

namespace a2a {

uint64_t wall_clock() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

std::string host_name() {
  char name[64] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::string record_name(Rank rank, int size, unsigned count, std::string_view suffix) {
  return "rank" + std::to_string(rank) + "-of-" + std::to_string(size) + "." + host_name() + "." +
         std::to_string(::getpid()) + "." + std::to_string(count) + "." + std::string(suffix);
}

size_t file_size_limit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

}  // namespace a2a
