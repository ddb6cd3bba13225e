// A tensor that peers view: what a peer may say of its own, and until when this rank's is viewed.
#include "transport/shm/peers/exposed_tensor.h"

#include <array>
#include <new>

#include "a2a/communicator.h"
#include "check.h"
#include "transport/shm/protocol/protocol.h"

namespace {

using namespace a2a;
using namespace a2a::shm;

constexpr DType kInt32{0, 32, 1};
constexpr std::array<int64_t, 2> kShape{4, 3};

TEST("a view lies in the peer's segment, or the description is refused") {
  check::Random random(check::seed());
  ProcessMemory& memory = ProcessMemory::get();
  Arena peers("test");
  auto* const record = new (peers.allocate(sizeof(ViewingRecord))) ViewingRecord{};
  auto local_group = std::make_shared<LocalGroup>();
  local_group->local_peers = {nullptr, std::make_shared<LocalPeer>()};
  LocalPeer& peer = *local_group->local_peers[1];
  SeatWords seat{};
  CHECK(peers.mapping().reach(peers.bytes()));
  peer.base = peers.base(), peer.bytes = peer.open = peers.bytes(), peer.seat = &seat, peer.bell = &memory.bell(0);
  const auto mine = Communicator::allocate_shared(48);
  ExposedTensor exposed(memory, local_group, mine.get(), 48, kInt32, kShape);
  const uint64_t end = peers.bytes();
  const uint64_t odd[] = {0, 1, 12, 64, end - 48, end - 47, end, end + 1, end - sizeof(ViewingRecord), UINT64_MAX};
  const auto any = [&] { return odd[random.in(size_t{0}, std::size(odd) - 1)]; };
  size_t good = 0, bad = 0;
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t where = peers.offset(reinterpret_cast<const std::byte*>(record));
    exposed.descriptions()[1] = {random.chance(0.3) ? any() : 0, random.chance(0.2) ? any() : 48,
                                 random.chance(0.2) ? any() : where, 1 + any() % 3};
    record->dims = random.chance(0.2) ? any() : 2;
    record->shape[0] = random.chance(0.2) ? static_cast<int64_t>(any()) : 4;
    record->shape[1] = 3;
    exposed.is_viewed(false);
    try {
      const View view = exposed.view(1);
      CHECK(view.data >= peers.base() && view.bytes <= end && view.data <= peers.base() + (end - view.bytes));
      size_t bytes = 4;
      for (const int64_t entries : view.shape) bytes *= static_cast<size_t>(entries);
      CHECK_EQ(bytes, view.bytes);
      ++good;
    } catch (const Error& error) {
      CHECK_EQ(error.code(), Code::backend);
      ++bad;
    }
  }
  CHECK(good > 1000 && bad > 1000);
  exposed.end_viewing();
}

// A group of two, in which the test writes what rank 1 would.
struct Group {
  Group() {
    local_group->local_peers = {nullptr, std::make_shared<LocalPeer>()};
    LocalPeer& peer = *local_group->local_peers[1];
    CHECK(memory.mapping().reach(memory.bytes()));
    peer.same_process = true;
    peer.base = memory.base(), peer.bytes = peer.open = memory.bytes();
    peer.seat = &seat, peer.bell = &ProcessMemory::get().bell(0);
  }
  TensorDescription description() const {
    return {0, 48, memory.offset(reinterpret_cast<const std::byte*>(record)), 7};
  }

  Arena memory{"test"};
  SeatWords seat{};
  ViewingRecord* const record = new (memory.allocate(sizeof(ViewingRecord))) ViewingRecord{};
  const std::shared_ptr<LocalGroup> local_group = std::make_shared<LocalGroup>();
};

TEST("a tensor is viewed until the peer's word has changed, and its memory is pinned until then") {
  Group group;
  Arena& arena = ProcessMemory::get().arena();
  auto tensor = Communicator::allocate_shared(48);
  ExposedTensor exposed(ProcessMemory::get(), group.local_group, tensor.get(), 48, kInt32, kShape);
  CHECK(!exposed.is_viewed(false));  // no description has come
  begin_viewing(group.record->word, 7);
  exposed.descriptions()[1] = group.description();
  CHECK(exposed.is_viewed(false) && !exposed.finished(false));
  exposed.end_viewing();
  CHECK(!exposed.viewing() && !exposed.finished(false));
  CHECK_THROWS(Code::invalid_argument, "released", exposed.view(0));
  tensor.reset();
  const size_t pinned = arena.allocated();
  end_viewing(group.record->word);
  CHECK(exposed.finished(false));
  exposed.release_memory();
  CHECK_EQ(arena.allocated() + 64, pinned);
}

TEST("a rank that is lost views nothing") {
  Group group;
  const auto tensor = Communicator::allocate_shared(48);
  ExposedTensor exposed(ProcessMemory::get(), group.local_group, tensor.get(), 48, kInt32, kShape);
  begin_viewing(group.record->word, 7);
  exposed.descriptions()[1] = group.description();
  CHECK(exposed.is_viewed(true));
  group.local_group->local_peers[1]->lost = true;
  CHECK(!exposed.is_viewed(false));
}

TEST("memory that no peer can map is refused") {
  Group group;
  std::array<std::byte, 48> own{};
  CHECK_THROWS(Code::invalid_argument, "does not lie in this rank's shared memory",
               ExposedTensor(ProcessMemory::get(), group.local_group, own.data(), own.size(), kInt32, kShape));
}

}  // namespace
