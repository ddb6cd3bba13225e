// What a rank tells the others of its host, and what it takes from them.
#include "transport/shm/peers/announcement.h"

#include <unistd.h>

#include <array>

#include "check.h"
#include "runtime/object_bytes.h"
#include "transport/shm/peers/shm_progress.h"

namespace {

using namespace a2a;
using namespace a2a::shm;

TEST("an announcement that was sent is the one that is read") {
  const auto progress = ShmProgress::of_this_thread();
  const Announcement mine = own_announcement(*progress, 3, 4096, "name");
  CHECK(mine.pid == ::getpid() && mine.uid == ::geteuid() && mine.size == 3 && mine.block == 4096);
  CHECK_EQ(mine.seat, progress->seat_offset());
  CHECK_EQ(*reinterpret_cast<const uint64_t*>(mine.nonce_address), mine.nonce);
  const Announcement read = parse_announcement(std::string(object_bytes(mine)), "rank 1", mine, "rank 0");
  CHECK(object_bytes(read) == object_bytes(mine));
  CHECK_EQ(read.listener_name(), "name");
}

TEST("text of another length is another version") {
  const Announcement mine = own_announcement(*ShmProgress::of_this_thread(), 2, 0, "");
  const std::string text(object_bytes(mine));
  for (const std::string& other : {std::string(), text + "x", text.substr(1)}) {
    CHECK_THROWS(Code::unsupported, "rank 1 runs another version", parse_announcement(other, "rank 1", mine, "rank 0"));
  }
}

TEST("ranks may use the CPUs of all of them together, at most as many as the largest quota allows") {
  std::array<Announcement, 3> ranks{};
  for (size_t i = 0; i < 3; ++i) CPU_SET(i / 2, &ranks[i].cpus);  // 0, 0, 1
  Surroundings found = surroundings_of(ranks);
  CHECK(found.ranks == 3 && found.cpus == 2);
  ranks[1].cpu_quota_micros = 300'000;
  found = surroundings_of(ranks);
  CHECK_EQ(found.cpus, 1);
  ranks[2].cpu_quota_micros = 1'000'001;
  found = surroundings_of(ranks);
  CHECK_EQ(found.cpus, 2);
  ranks[2].cpu_quota_micros = 9'000'000;
  found = surroundings_of(ranks);
  CHECK_EQ(found.cpus, 2);
}

}  // namespace
