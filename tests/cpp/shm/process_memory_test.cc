// The memory that the ranks of a process share with other processes.
#include "transport/shm/peers/process_memory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "a2a/types.h"
#include "check.h"

namespace {

using namespace a2a;
using namespace a2a::shm;

TEST("a process has one, with a read-only segment and a writable one") {
  ProcessMemory& memory = ProcessMemory::get();
  CHECK(&memory == &ProcessMemory::get() && !memory.inherited());
  CHECK(memory.arena().base() != memory.common().base());
  std::byte* const chunk = memory.common().allocate(64);
  CHECK(memory.common().offset(chunk) >= kBellsBytes);  // the bells come first
  memory.common().release(chunk);
}

TEST("each thread that is a rank has its own bell, up to kBells") {
  ProcessMemory& memory = ProcessMemory::get();
  std::set<uint32_t> bells;
  bool refused = false;
  while (!refused && bells.size() <= kBells) {
    try {
      const uint32_t bell = memory.take_bell();
      CHECK(bell < kBells && bells.insert(bell).second);
      memory.bell(bell).rings = 1;  // is accessible
    } catch (const Error& error) {
      refused = CHECK_EQ(error.code(), Code::backend);
    }
  }
  CHECK(refused && bells.size() == kBells);
  for (const uint32_t bell : bells) memory.give_bell(bell);
  const uint32_t again = memory.take_bell();
  CHECK(bells.contains(again));
  memory.give_bell(again);
}

#if !defined(__SANITIZE_THREAD__)
TEST("a forked child has memory of its own, and does not write into its parent's") {
  ProcessMemory& memory = ProcessMemory::get();
  std::byte* const data = memory.arena().allocate(64);
  const pid_t child = ::fork();
  if (child == 0) {
    check::failures = 0;
    CHECK(memory.inherited());
    ProcessMemory& own = ProcessMemory::get();
    CHECK(&own != &memory && own.nonce() != memory.nonce());
    *data = std::byte{1};
    ::_exit(check::failures == 0 ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  CHECK(*data == std::byte{0});
  memory.arena().release(data);
}
#endif

}  // namespace
