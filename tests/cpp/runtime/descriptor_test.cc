#include "runtime/descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "check.h"

namespace {

using a2a::Descriptor;

int open_null() { return ::open("/dev/null", O_RDWR | O_CLOEXEC); }
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST("none is a standard stream, where the program has closed these") {
  int kept[3];
  for (int fd = 0; fd < 3; ++fd) kept[fd] = ::fcntl(fd, F_DUPFD_CLOEXEC, 10), ::close(fd);
  {
    const Descriptor first(open_null()), second(open_null()), third(open_null()), fourth(open_null());
    for (int fd = 0; fd < 3; ++fd) CHECK(!is_open(fd));
    for (const Descriptor* one : {&first, &second, &third, &fourth}) {
      CHECK(one->fd() > 2 && ::fcntl(one->fd(), F_GETFD) == FD_CLOEXEC);
    }
  }
  for (int fd = 0; fd < 3; ++fd) ::dup2(kept[fd], fd), ::close(kept[fd]);
}

TEST("a failure keeps its errno") {
  const Descriptor none(::open("/no/such/file", O_RDONLY));
  CHECK(!none.open() && errno == ENOENT);
}

TEST("a number that the program has closed and used again is not closed") {
  int number = -1;
  {
    const Descriptor ours(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    number = ours.fd();
    CHECK_EQ(ours.if_ours(), number);
    ::close(number);
    CHECK_EQ(ours.if_ours(), -1);
    const int theirs = open_null();
    CHECK_EQ(::dup2(theirs, number), number);
    if (theirs != number) ::close(theirs);
    CHECK_EQ(ours.if_ours(), -1);
  }
  CHECK(is_open(number));
  ::close(number);
}

}  // namespace
