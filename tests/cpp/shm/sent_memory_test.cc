// What is asked about memory that is sent.
#include "transport/shm/ways/sent_memory.h"

#include <sys/mman.h>

#include <cstring>

#include "../../fuzz/hostile_peer.h"
#include "check.h"

namespace {

using namespace a2a;
using namespace a2a::shm;

TEST("memory is in the segment when all of it is") {
  fuzz::HostilePeer peer;
  const fuzz::Tensor shared(peer.membership().arena(), 1000, true), own(peer.membership().arena(), 1000, false);
  const Run both[] = {{1, shared.bytes().data(), 1000}, {1, own.bytes().data(), 1000}};
  Sends all;
  all.begin(both);
  CHECK(SentMemory(peer.membership(), {both, 1}, all).in_segment());
  CHECK(!SentMemory(peer.membership(), both, all).in_segment());
}

TEST("where not all memory is present, that of the one peer may be") {
  constexpr size_t kBytes = 1 << 16;
  auto* const memory = static_cast<std::byte*>(
      ::mmap(nullptr, 2 * kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  std::memset(memory, 1, kBytes);
  fuzz::HostilePeer peer;
  const Run both[] = {{1, memory, kBytes}, {1, memory + kBytes, kBytes}};
  Sends all;
  all.begin(both);
  CHECK(SentMemory(peer.membership(), {both, 1}, all).present());
  CHECK(!SentMemory(peer.membership(), {both + 1, 1}, all).present());
  CHECK(!SentMemory(peer.membership(), both, all).present());
  std::memset(memory + kBytes, 1, kBytes);
  CHECK(!SentMemory(peer.membership(), both, all).present());  // it was asked before
  all.begin(both);
  CHECK(SentMemory(peer.membership(), both, all).present());
  ::munmap(memory, 2 * kBytes);
}

}  // namespace
