#include "runtime/descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace a2a {
namespace {

int above_standard_streams(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  ::close(fd);
  errno = error;
  return moved;
}

}  // namespace

FileIdentity::FileIdentity(int fd) noexcept {
  struct stat status{};
  if (fd < 0 || ::fstat(fd, &status) != 0) return;
  known_ = true;
  device_ = status.st_dev, inode_ = status.st_ino;
}

bool FileIdentity::is(int fd) const noexcept {
  const int error = errno;
  const FileIdentity now(fd);
  errno = error;
  return known_ && now.known_ && device_ == now.device_ && inode_ == now.inode_;
}

Descriptor::Descriptor(int fd) noexcept : fd_(above_standard_streams(fd)), file_(fd_) {}

void Descriptor::reset() noexcept {
  if (if_ours() >= 0) ::close(fd_);
  fd_ = -1;
}

}  // namespace a2a
