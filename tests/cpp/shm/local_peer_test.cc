// A peer's process, and what may be read of its memory.
#include "transport/shm/peers/local_peer.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "transport/shm/memory/arena.h"

namespace {

using namespace a2a;
using namespace a2a::shm;

TEST("only what lies in the peer's segment is reached") {
  Arena memory("test", size_t{1} << 20);
  LocalPeer peer;
  peer.base = memory.base(), peer.bytes = memory.bytes();
  peer.segment = Mapping(memory.fd(), memory.bytes(), PROT_READ);
  const uint64_t all = peer.bytes;
  CHECK(peer.reach(0, 1) && peer.open > 0 && peer.reach(all, 0));
  CHECK(!peer.reach(0, all + 1) && !peer.reach(all, 1) && !peer.reach(1, UINT64_MAX) && !peer.reach(UINT64_MAX, 1));
  CHECK(!peer.reach_common(0, 1));  // it has none
}

TEST("a block that does not lie in the segment is refused") {
  LocalPeer peer;
  std::vector<std::byte> memory(Block::bytes(2) + 2 * kCacheLine);
  peer.base = memory.data(), peer.bytes = peer.open = memory.size();
  CHECK(reinterpret_cast<std::byte*>(&peer.block(kCacheLine, 2).words()) == memory.data() + kCacheLine);
  CHECK_THROWS(Code::backend, "outside of its segment", peer.block(1, 2));
  CHECK_THROWS(Code::backend, "outside of its segment", peer.block(3 * kCacheLine, 2));
}

#if !defined(__SANITIZE_THREAD__)
TEST("gone() when a process has ended, by its socket alone") {
  int ends[2];
  CHECK_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  LocalPeer peer;
  peer.socket = Descriptor(ends[0]);
  Descriptor other(ends[1]);
  CHECK(!peer.gone());
  CHECK_EQ(peer.state(), "alive");
  peer.pid = ::fork();
  if (peer.pid == 0) {
    ::pause();
    ::_exit(0);
  }
  const std::string pid = "pid " + std::to_string(peer.pid);
  CHECK_EQ(peer.state(), pid + ", alive");
  CHECK(!peer.gone());
  ::kill(peer.pid, SIGKILL);
  ::waitpid(peer.pid, nullptr, 0);
  other = Descriptor();
  CHECK(peer.gone() && peer.gone());
  CHECK_EQ(peer.state(), pid + ", exited");
}
#endif

TEST("a thread of this process is gone when it is marked lost") {
  LocalPeer peer;
  peer.same_process = true;
  CHECK(!peer.gone());
  CHECK_EQ(peer.state(), "a thread of this process");
  peer.lost = true;
  CHECK(peer.gone());
}

}  // namespace
