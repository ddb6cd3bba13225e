// Messages between ranks of one host, with descriptors.
#include "transport/shm/peers/unix_socket.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "check.h"

namespace {

using namespace a2a;
using namespace a2a::shm;

struct Pair {
  Pair() {
    int ends[2];
    CHECK_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    one = Descriptor(ends[0]), two = Descriptor(ends[1]);
  }
  Descriptor one, two;
};

TEST("connecting to a listener by its name") {
  Listener listener(4);
  CHECK(!listener.name().empty());
  const Descriptor client = connect_to_listener(listener.name());
  const Descriptor server = listener.accept();
  CHECK(client.open() && server.open());
  CHECK(try_send(client.fd(), 42));
  CHECK_EQ(receive_message<int>(server.fd()).value_or(0), 42);
  const Listener other(1);
  CHECK(other.name() != listener.name());
}

TEST("connecting to an unused name fails") {
  CHECK(!connect_to_listener("a2a-test-nobody").open());
  CHECK_EQ(errno, ECONNREFUSED);
}

TEST("two descriptors come with a message, closed in programs that this one starts") {
  const Pair ends;
  int pipe[2];
  CHECK_EQ(::pipe(pipe), 0);
  const Descriptor read(pipe[0]), write(pipe[1]);
  CHECK(try_send(ends.one.fd(), 'x', pipe));
  Descriptor first, second;
  CHECK_EQ(receive_message<char>(ends.two.fd(), &first, &second).value_or(0), 'x');
  if (!CHECK(first.open() && second.open() && first.fd() != pipe[0])) return;
  CHECK((::fcntl(first.fd(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK_EQ(::write(second.fd(), "y", 1), 1);
  char got = 0;
  CHECK_EQ(::read(first.fd(), &got, 1), 1);
  CHECK_EQ(got, 'y');
}

TEST("descriptors that the receiver does not ask for are closed") {
  const Pair ends;
  const int before = ::dup(0);  // the lowest free number
  ::close(before);
  const int sent[] = {0};
  CHECK(try_send(ends.one.fd(), 1, sent));
  CHECK(receive_message<int>(ends.two.fd()).has_value());
  const int after = ::dup(0);
  ::close(after);
  CHECK_EQ(after, before);
}

TEST("a message of another length is none, and neither is the end of a connection") {
  Pair ends;
  for (const std::string_view sent : {"x", "a longer one"}) {
    CHECK(send_message(ends.one.fd(), sent));
    CHECK(!receive_message<int>(ends.two.fd()).has_value());
  }
  CHECK(try_send(ends.one.fd(), 42));
  CHECK_EQ(receive_message<int>(ends.two.fd()).value_or(0), 42);  // the whole of each was taken
  ends.one = Descriptor();
  CHECK(!receive_message<int>(ends.two.fd()).has_value());
  CHECK(!try_send(ends.two.fd(), 1));  // and no signal
}

TEST("a message with more descriptors than two is none") {
  const Pair ends;
  int sent[] = {0, 0, 0};
  char byte = 'x';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(sent))] = {};
  msghdr message{nullptr, 0, &data, 1, control, sizeof(control), 0};
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  *header = {CMSG_LEN(sizeof(sent)), SOL_SOCKET, SCM_RIGHTS};
  std::memcpy(CMSG_DATA(header), sent, sizeof(sent));
  CHECK_EQ(::sendmsg(ends.one.fd(), &message, 0), 1);
  Descriptor first, second;
  CHECK(!receive_message<char>(ends.two.fd(), &first, &second).has_value());
}

#ifndef __SANITIZE_ADDRESS__  // which opens a pipe to look at the error's type
TEST("a rank that can open no more files says so, and does not blame its peer") {
  const Pair ends;
  const int sent[] = {0, 0};
  CHECK(try_send(ends.one.fd(), 'x', sent));
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const int lowest = ::dup(0);
  ::close(lowest);
  const rlimit one_more{static_cast<rlim_t>(lowest) + 1, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &one_more);
  Descriptor first, second;
  CHECK_THROWS(Code::backend, "Too many open files", receive_message<char>(ends.two.fd(), &first, &second));
  ::setrlimit(RLIMIT_NOFILE, &before);
  const int after = ::dup(0);
  ::close(after);
  CHECK_EQ(after, lowest);  // the one that came is closed
}
#endif

}  // namespace
