// The check of memory that a peer offers, and mappings of memory.
#include "transport/shm/memory/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>

#include "check.h"
#include "transport/shm/memory/arena.h"

namespace {

using namespace a2a;
using namespace a2a::shm;

constexpr size_t kBytes = size_t{4} << 20;  // whole huge pages
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Descriptor memfd(unsigned flags, int seals) {
  Descriptor fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  if (fd.open() && (::ftruncate(fd.fd(), kBytes) != 0 || ::fcntl(fd.fd(), F_ADD_SEALS, seals) != 0))
    return Descriptor();
  return fd;
}

Descriptor file_in(const std::string& folder) {
  std::string path = folder + "/a2a-test-mapping-XXXXXX";
  Descriptor fd(::mkstemp(path.data()));
  if (!fd.open()) return fd;
  ::unlink(path.c_str());
  return ::ftruncate(fd.fd(), kBytes) == 0 ? std::move(fd) : Descriptor();
}

TEST("what a peer could make fault is not mapped, whatever kind of file it is") {
  int pipe[2];
  CHECK_EQ(::pipe(pipe), 0);
  const Descriptor reader(pipe[0]), writer(pipe[1]);
  const std::pair<const char*, Descriptor> bad[] = {
      {"a sealed memfd of huge pages", memfd(MFD_HUGETLB, kSeals)},
      {"a memfd that is not sealed", memfd(0, 0)},
      {"a memfd that may shrink", memfd(0, F_SEAL_GROW | F_SEAL_SEAL)},
      {"a file", file_in("/var/tmp")},
      {"a file in memory", file_in("/dev/shm")},
      {"the library", Descriptor(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC))},
      {"a device", Descriptor(::open("/dev/zero", O_RDWR | O_CLOEXEC))},
      {"secret memory", Descriptor(static_cast<int>(::syscall(SYS_memfd_secret, O_CLOEXEC)))},
      {"a pipe", Descriptor(::dup(reader.fd()))},
      {"nothing", Descriptor()},
  };
  for (const auto& [name, fd] : bad) {
    const check::Note note(name, 0);
    if (std::string(name) == "secret memory" && fd.open()) CHECK_EQ(::ftruncate(fd.fd(), kBytes), 0);
    CHECK_THROWS(Code::backend, "a peer offered", map_peer(fd.fd(), kBytes, false));
  }
  const Descriptor good = sealed_memfd("test", kBytes);
  CHECK_THROWS(Code::backend, "not the size it said", map_peer(good.fd(), 2 * kBytes, false));
  Mapping mapped = map_peer(good.fd(), kBytes, true);
  CHECK(mapped.reach(kBytes));
  std::memset(mapped.base(), 1, kBytes);
}

bool accessible(const std::byte* at) {
  const Descriptor fd(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  int ends[2];
  if (::pipe(ends) != 0) return false;
  const Descriptor reader(ends[0]), writer(ends[1]);
  return ::write(writer.fd(), at, 1) == 1;  // EFAULT where it is not
}

TEST("a mapping is accessible as far as somebody asked for") {
  const Descriptor fd = sealed_memfd("test", kBytes);
  Mapping all(fd.fd(), kBytes, true), mapped(fd.fd(), kBytes, false);
  CHECK(all.reach(kBytes) && !all.reach(kBytes + 1) && all.open() == kBytes);
  CHECK(!accessible(mapped.base()));
  CHECK(mapped.reach(1) && accessible(mapped.base()));
  CHECK(mapped.open() < kBytes && !accessible(mapped.base() + kBytes - 1));
  all.base()[kBytes - 1] = std::byte{7};
  CHECK(mapped.reach(kBytes) && mapped.base()[kBytes - 1] == std::byte{7});
}

// Runs it in a child of fork(); returns its exit status.
int in_child(const std::function<bool()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body() ? 0 : 1);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

TEST("writes of a child to private memory do not reach its parent") {
#if defined(__SANITIZE_THREAD__)
  return;  // it does not support fork() well
#endif
  const Descriptor fd = sealed_memfd("test", kBytes);
  Mapping mapped(fd.fd(), kBytes, true);
  CHECK(mapped.reach(10));
  mapped.base()[0] = mapped.base()[5000] = std::byte{1};
  CHECK_EQ(in_child([&] {
             mapped.become_private(fd.fd());
             const bool seen = mapped.base()[0] == std::byte{1};
             mapped.base()[0] = mapped.base()[5000] = std::byte{2};
             return seen && mapped.base()[0] == std::byte{2};
           }),
           0);
  CHECK(mapped.base()[0] == std::byte{1} && mapped.base()[5000] == std::byte{1});
}

TEST("memory of an arena is zeroed, also where its pages cannot be given back") {
  for (const bool locked : {false, true}) {
    const check::Note note("locked", locked);
    Arena arena("test", size_t{32} << 20);
    const size_t large = size_t{3} << 20;
    for (const size_t bytes : {size_t{100}, size_t{5000}, large}) {
      std::byte* const first = arena.allocate(bytes);
      std::memset(first, 0xFF, bytes);
      if (locked && ::mlock(first, bytes) != 0) return;  // not allowed
      arena.release(first);
      std::byte* const again = arena.allocate(bytes);
      CHECK(again == first);
      for (size_t i = 0; i < bytes; i += 50) CHECK(again[i] == std::byte{0});
      arena.release(again);
    }
  }
}

TEST("an arena whose descriptor was closed does not touch the file that has its number") {
  Arena arena("test", size_t{32} << 20);
  const int number = arena.fd();
  ::close(number);
  const Descriptor file = file_in("/tmp");
  CHECK_EQ(::dup2(file.fd(), number), number);
  const std::string content(1 << 16, 'x');
  CHECK_EQ(::pwrite(number, content.data(), content.size(), 0), static_cast<ssize_t>(content.size()));
  std::byte* const data = arena.allocate(size_t{8} << 20);
  data[0] = std::byte{1};
  arena.release(data);
  std::string found(content.size(), '\0');
  CHECK_EQ(::pread(number, found.data(), found.size(), 0), static_cast<ssize_t>(found.size()));
  CHECK(found == content);
  CHECK_EQ(::lseek(number, 0, SEEK_END), static_cast<off_t>(kBytes));
  CHECK_THROWS(Code::backend, "has closed file descriptor", arena.fd());
  ::close(number);
}

}  // namespace
