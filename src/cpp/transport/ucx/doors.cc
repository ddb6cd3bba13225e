#include "transport/ucx/doors.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/fork_guard.h"

namespace a2a::ucx {
namespace {

// getsockname() or getpeername(). Returns "" for what is no socket of the internet, or is not connected.
template <class Ask>
std::string address_of(int fd, Ask ask) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  if (ask(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return "";
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return "";
  return std::string(reinterpret_cast<const char*>(&address), bytes);
}

template <class Visit>
void each_descriptor(Visit visit) {
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return;
  std::vector<int> found;  // closing one changes the folder
  while (const dirent* const entry = ::readdir(folder)) {
    if (entry->d_name[0] != '.') found.push_back(std::atoi(entry->d_name));
  }
  std::erase(found, ::dirfd(folder));
  ::closedir(folder);
  for (const int fd : found) visit(fd);
}

// Calls visit() with the sockets that listen or were accepted at one of the doors, or are connected to one.
template <class Visit>
void each_at(const Doors& doors, Visit visit) {
  each_descriptor([&](int fd) {
    if (doors.contains(address_of(fd, ::getsockname)) || doors.contains(address_of(fd, ::getpeername))) visit(fd);
  });
}

// fork_mutex() guards it.
std::vector<const Doors*>& kept() {
  static auto& one = *new std::vector<const Doors*>;
  return one;
}

void close_in_this_child() {
  for (const Doors* doors : kept()) each_at(*doors, [](int fd) { ::close(fd); });
  kept().clear();
}

}  // namespace

Doors listening() {
  Doors found;
  each_descriptor([&](int fd) {
    int listens = 0;
    socklen_t bytes = sizeof(listens);
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0) return;
    if (std::string address = address_of(fd, ::getsockname); !address.empty()) found.insert(std::move(address));
  });
  return found;
}

void KeptSockets::keep(Doors doors) {
  doors_ = std::move(doors);
  each_at(doors_, [](int fd) { ::fcntl(fd, F_SETFD, FD_CLOEXEC); });
  call_in_child(close_in_this_child);
  const std::lock_guard lock(fork_mutex());
  kept().push_back(&doors_);
}

KeptSockets::~KeptSockets() {
  const std::lock_guard lock(fork_mutex());
  std::erase(kept(), &doors_);
}

}  // namespace a2a::ucx
