// A rank's membership in a group, of threads of this process: what its peers see of it, and when its memory is used
// again.
#include "transport/shm/peers/membership.h"

#include <atomic>
#include <latch>
#include <memory>
#include <optional>

#include "a2a/bootstrap.h"
#include "check.h"
#include "transport/shm/peers/handshake.h"

namespace {

using namespace a2a;
using namespace a2a::shm;

// Makes the membership of each rank, and runs the body in its thread.
void as_group(int n, const std::vector<Rank>& names, const std::function<void(std::optional<Membership>&)>& body) {
  const auto bootstraps = thread_bootstraps(n);
  check::threads(n, [&](int rank) {
    auto progress = ShmProgress::of_this_thread();
    auto block = Membership::new_block(progress->memory(), n);
    const uint64_t offset = progress->memory().arena().offset(block.get());
    ConnectedGroup group = connect_group(rank, n, *bootstraps[static_cast<size_t>(rank)], *progress, offset,
                                         Deadline::after_seconds(20), names);
    std::optional<Membership> membership;
    membership.emplace(rank, std::move(block), progress, group.surroundings, group.local_peers, group.blocks, names);
    body(membership);
  });
}

TEST("ranks have the names of the whole group, in both directions") {
  as_group(3, {2, 5, 9}, [](std::optional<Membership>& m) {
    CHECK_EQ(m->size(), 3);
    CHECK(m->threads());
    for (Rank r = 0; r < 3; ++r) {
      CHECK_EQ(m->name(r), std::vector<Rank>({2, 5, 9})[static_cast<size_t>(r)]);
      CHECK_EQ(m->rank_named(m->name(r)), r);
    }
  });
}

TEST("finished() follows a peer's published steps") {
  std::latch before(2), after(2);
  as_group(2, {}, [&](std::optional<Membership>& m) {
    const Rank peer = 1 - m->rank();
    const uint64_t last = last_step(1);
    CHECK(!m->finished(peer, last));
    CHECK(m->slot_free(peer, kSlots));
    CHECK(!m->slot_free(peer, kSlots + 1));
    before.arrive_and_wait();
    m->publish_finished({Op::barrier, Memory::host, DType{1, 8, 1}, 1, 0});
    after.arrive_and_wait();
    CHECK(m->finished(peer, last) && !m->finished(peer, last + 1));
    CHECK(m->slot_free(peer, kSlots + 1));
    CHECK(m->describe(peer).find("a thread of this process") != std::string::npos);
  });
}

TEST("peers raise the first reason of a rank that aborts") {
  std::latch posted(2);
  as_group(2, {4, 7}, [&](std::optional<Membership>& m) {
    m->throw_if_aborted(1 - m->rank());
    posted.arrive_and_wait();
    if (m->rank() == 1) {
      m->post_abort(Code::timeout, "the first reason");
      m->post_abort(Code::backend, "the second reason");
      return;
    }
    const Deadline deadline = Deadline::after_seconds(20);
    while (abort_of(m->peer(1).block.words()) == 0 && !deadline.passed()) std::this_thread::yield();
    CHECK_THROWS(Code::timeout, "the first reason", m->throw_if_aborted(1));
    CHECK_THROWS(Code::timeout, "the first reason", m->nonsense(1, "kind"));
  });
}

TEST("await_departure() waits for the peers that have not left, until its deadline") {
  std::latch waited(2);
  as_group(2, {}, [&](std::optional<Membership>& m) {
    if (m->rank() == 0) {
      const auto before = Deadline::Clock::now();
      m->await_departure(Deadline::after_seconds(0.02));
      CHECK(Deadline::Clock::now() - before >= std::chrono::milliseconds(20));
    }
    waited.arrive_and_wait();
    if (m->rank() == 1) return m->leave(Left::closed);
    const Deadline deadline = Deadline::after_seconds(20);
    m->await_departure(deadline);
    CHECK(!deadline.passed());
    CHECK(left_of(m->peer(1).block.words()) == Left::closed);
  });
}

TEST("room for a step is kept for the next step with the same slots, and for all lists apart") {
  as_group(2, {}, [&](std::optional<Membership>& m) {
    std::byte* const first = m->room_for_all(1, 100);
    CHECK(m->room_for_all(1 + kSlots, 200) == first);
    CHECK(m->room_for_all(2, 100) != first);
    std::byte* const list = m->room_for_list(1, 0, 100);
    CHECK(m->room_for_list(1, 1, 100) != list);
    CHECK(m->room_for_list(1 + kSlots, 0, 100) == list);
  });
}

TEST("memory of a membership is used again when all peers have left") {
  ProcessMemory& memory = ProcessMemory::get();
  {
    const auto sweep = Membership::new_block(memory, 2);
  }
  std::atomic<size_t> with_all = 0, with_one = 0;
  std::latch counted(2), dropped(2);
  as_group(2, {}, [&](std::optional<Membership>& m) {
    m->allocate(1 << 20);
    counted.arrive_and_wait();
    if (m->rank() == 1) {
      with_all = memory.arena().allocated();
      m.reset();
      with_one = memory.arena().allocated();
    }
    dropped.arrive_and_wait();
  });
  CHECK_EQ(with_one, with_all);  // rank 0 may still read there
  CHECK(memory.arena().allocated() + (2 << 20) <= with_all);
}

}  // namespace
