// How the ranks of one host connect.
#include "transport/shm/peers/handshake.h"

#include <unistd.h>

#include <cstring>
#include <functional>

#include "a2a/bootstrap.h"
#include "check.h"
#include "ranks.h"
#include "runtime/object_bytes.h"
#include "transport/shm/peers/announcement.h"

namespace {

using namespace a2a;
using namespace a2a::shm;

// Changes what it returns.
class ChangingBootstrap final : public Bootstrap {
 public:
  using Change = std::function<void(std::vector<std::string>&)>;
  ChangingBootstrap(Bootstrap& inner, Change change) : inner_(inner), change_(std::move(change)) {}
  std::vector<std::string> allgather(std::string_view mine, Deadline deadline) override {
    auto all = inner_.allgather(mine, deadline);
    change_(all);
    return all;
  }

 private:
  Bootstrap& inner_;
  Change change_;
};

ConnectedGroup connect(Rank rank, int size, Bootstrap& bootstrap, uint64_t block) {
  return connect_group(rank, size, bootstrap, *ShmProgress::of_this_thread(), block, Deadline::after_seconds(20), {});
}

TEST("threads and processes get each other's blocks, seats and memory") {
  const auto body = [](Rank rank, Bootstrap& bootstrap, bool threads) {
    const auto progress = ShmProgress::of_this_thread();
    const ConnectedGroup group = connect(rank, 3, bootstrap, 4096 * static_cast<uint64_t>(rank + 1));
    CHECK_EQ(group.blocks, std::vector<uint64_t>({4096, 8192, 12288}));
    CHECK_EQ(group.surroundings.ranks, 3);
    for (Rank peer = 0; peer < 3; ++peer) {
      const auto& other = group.local_peers[static_cast<size_t>(peer)];
      if (peer == rank) {
        CHECK(other == nullptr);
        continue;
      }
      CHECK_EQ(other->same_process, threads);
      CHECK((other->base == progress->memory().arena().base()) == threads);
      CHECK(other->seat != nullptr && other->seat != progress->seat() && other->bell != nullptr);
      CHECK(other->reach(0, other->bytes) && !other->reach(1, other->bytes));
      CHECK(!other->gone());
    }
    bootstrap.allgather("", Deadline::after_seconds(20));  // nobody ends before the others have looked
  };
  const auto bootstraps = thread_bootstraps(3);
  check::threads(3, [&](int rank) { body(rank, *bootstraps[static_cast<size_t>(rank)], true); });
#if !defined(__SANITIZE_THREAD__)
  const std::string job = ranks::new_job();
  ranks::Processes processes;
  for (Rank rank = 0; rank < 3; ++rank) {
    processes.pids.push_back(::fork());
    if (processes.pids.back() != 0) continue;
    ::alarm(60);
    check::failures = 0;
    check::guarded("rank", [&] { body(rank, *unix_bootstrap(rank, 3, job, Deadline::after_seconds(20)), false); });
    ::_exit(check::failures == 0 ? 0 : 1);
  }
  for (const int status : processes.wait()) CHECK_EQ(status, 0);
#endif
}

// Connects two threads, of which rank 0 gets a changed announcement of rank 1.
void with_change(const std::function<void(Announcement&)>& change, Code code, const char* part) {
  const auto bootstraps = thread_bootstraps(2);
  check::threads(2, [&](int rank) {
    ChangingBootstrap bootstrap(*bootstraps[static_cast<size_t>(rank)], [&](std::vector<std::string>& all) {
      if (rank == 1) return;
      Announcement other;
      std::memcpy(&other, all[1].data(), sizeof(other));
      change(other);
      all[1].assign(object_bytes(other));
    });
    if (rank == 1) return (void)connect(1, 2, bootstrap, 4096);
    CHECK_THROWS(code, part, connect(0, 2, bootstrap, 4096));
  });
}

TEST("announcements of another version, size, host or user are refused by name") {
  with_change([](Announcement& a) { ++a.protocol; }, Code::unsupported, "rank 1 runs another version");
  with_change([](Announcement& a) { a.size = 3; }, Code::invalid_argument, "rank 1 was started with size 3, rank 0");
  with_change([](Announcement& a) { a.boot_id[0] ^= 1; }, Code::unsupported, "rank 1 lives on another host");
  with_change([](Announcement& a) { ++a.uid; }, Code::unsupported, "rank 1 belongs to user");
}

TEST("a rank that falsely announces to be a thread of this process is refused") {
  with_change([](Announcement& a) { a.segment_bytes += 4096; }, Code::backend, "rank 1 is no thread of this process");
  with_change([](Announcement& a) { a.seat += 1; }, Code::backend, "rank 1 named a seat outside of its segment");
  with_change([](Announcement& a) { a.bell = kBells; }, Code::backend, "rank 1 named a seat outside of its segment");
}

TEST("a bootstrap that loses a string is refused") {
  const auto bootstraps = thread_bootstraps(1);
  ChangingBootstrap bootstrap(*bootstraps[0], [](std::vector<std::string>& all) { all.clear(); });
  CHECK_THROWS(Code::invalid_argument, "returned 0 strings for a group of 1 ranks", connect(0, 1, bootstrap, 4096));
}

}  // namespace
