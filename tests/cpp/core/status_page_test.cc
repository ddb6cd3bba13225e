// The status page: what a reader finds in it while operations run. It is read as `a2a status` does, at /proc/PID/fd.
#include "core/status_page.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <optional>

#include "check.h"
#include "runtime/last_tick.h"

namespace {

using namespace a2a;
using status::Entry;

// Returns the descriptor of the page of this process, or -1.
int page() {
  for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(one.path(), error);
    if (target.starts_with("/memfd:a2a-status")) return std::stoi(one.path().filename());
  }
  return -1;
}

// The contents of an entry. Its words are atomic, so it is no value.
struct Shown {
  explicit Shown(size_t at) {
    const auto offset = static_cast<off_t>(status::kHeaderBytes + at * status::kEntryBytes);
    CHECK_EQ(::pread(page(), bytes, sizeof(bytes), offset), static_cast<ssize_t>(sizeof(bytes)));
  }
  const Entry& operator*() const { return *reinterpret_cast<const Entry*>(bytes); }
  const Entry* operator->() const { return &**this; }
  alignas(Entry) char bytes[status::kEntryBytes];
};

Batch batch_of(uint64_t number) {
  static std::byte memory[64];
  Batch batch;
  batch.signature = {Op::alltoallv, Memory::host, DType{2, 32, 1}, number, 0};
  batch.sends = {{0, memory, 8}, {1, memory, 12}};
  batch.recvs = {{1, memory, 20}};
  return batch;
}

TEST("a process has a page as long as it has a communicator") {
  CHECK_EQ(page(), -1);
  auto one = Status::open(1, 3, 2, 77, "split #12 of world"), other = Status::open(0, 1, 1, 78, "world");
  if (!CHECK(one != nullptr && other != nullptr)) return;
  const Shown shown(0);
  CHECK(shown->serial != 0 && shown->group == 77 && shown->rank == 1 && shown->size == 3 && shown->hosts == 2);
  CHECK_EQ(std::string(shown->label), "split #12 of world");
  CHECK_EQ(shown->number.load(), 0);
  CHECK(Shown(1)->serial != 0 && Shown(2)->serial == 0);
  one.reset();
  CHECK_EQ(Shown(0)->serial.load(), 0);
  CHECK(page() >= 0);
  other.reset();
  CHECK_EQ(page(), -1);
}

TEST("the page cannot be made shorter") {
  const auto status = Status::open(0, 1, 1, 1, "world");
  CHECK(::ftruncate(page(), 0) != 0);
}

TEST("operations: the last one, all bytes, its end and its error") {
  const auto status = Status::open(0, 2, 1, 1, "world");
  status->begin(batch_of(1), last_tick());
  status->begin(batch_of(2), last_tick());
  {
    const Shown shown(0);
    CHECK(shown->begun == 2 && shown->number == 2 && shown->ended == 0 && shown->failed == 0);
    CHECK(shown->sent == 40 && shown->expected == 40 && shown->started > 0);
    CHECK_EQ(shown->operation.load(), 1U | 1U << 8);
    CHECK_EQ(shown->dtype.load(), 2U | 32U << 8 | 1U << 16);
  }
  status->end(1, nullptr);
  const Error error(Code::timeout, "too late");
  status->end(2, &error);
  const Shown shown(0);
  CHECK(shown->ended == 2 && shown->failed == 2 && shown->code == static_cast<uint32_t>(Code::timeout));
  CHECK_EQ(std::string(shown->error), "too late");
}

TEST("the place of a call belongs to the operation that it began") {
  const auto status = Status::open(0, 2, 1, 1, "world");
  set_call_site("train.py:12");
  CHECK(call_site_version() != 0);
  status->begin(batch_of(1), last_tick());
  status->begin(batch_of(2), last_tick());
  CHECK(Shown(0)->sited == 1 && std::string(Shown(0)->site) == "train.py:12");
  set_call_site("train.py:13");
  status->show_site();
  CHECK(Shown(0)->sited == 2 && std::string(Shown(0)->site) == "train.py:13");
  set_call_site("");
}

TEST("waits: ranks, since when, and their end") {
  const auto status = Status::open(0, 64, 1, 1, "world");
  std::vector<Rank> ranks(63);
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<Rank>(i + 1);
  status->wait(7, ranks);
  const uint64_t since = Shown(0)->waits[0].since;
  ::usleep(30'000);
  status->wait(7, std::span(ranks).first(1));
  {
    const Shown shown(0);
    const status::Wait& wait = shown->waits[0];
    CHECK(wait.version % 2 == 0 && wait.number == 7 && wait.count == 1 && wait.ranks[0] == 1);
    CHECK(wait.since == since && wait.seen > since);
    CHECK_EQ(wait.ranks[status::kMostShown - 1], static_cast<int32_t>(status::kMostShown));
  }
  status->wait(8, {});
  CHECK(Shown(0)->waits[0].since > since);
  Message message{true, 5, 0, nullptr, 3, {}};
  status->add(message);
  status->wait(message);
  {
    const Shown shown(0);
    CHECK(shown->waits[1].seen > 0 && shown->waits[1].sends == 1 && shown->waits[1].ranks[0] == 5);
    CHECK(shown->messages == 1 && shown->message_bytes == 3);
  }
  status->no_message();
  CHECK_EQ(Shown(0)->waits[1].seen, 0);
  message.peer = kAnySource;
  status->wait(message);
  CHECK_EQ(Shown(0)->waits[1].count, 0U);
}

TEST("communicators beyond the page's room have no entry, and one that ends makes room") {
  std::vector<std::shared_ptr<Status>> all;
  for (size_t i = 0; i < status::kEntries; ++i) all.push_back(Status::open(0, 1, 1, i, "world"));
  CHECK(all.back() != nullptr);
  CHECK(Status::open(0, 1, 1, 1, "world") == nullptr);
  all[5].reset();
  CHECK(Status::open(0, 1, 1, 1, "world") != nullptr);
}

TEST("a forked child changes nothing, and has a page of its own") {
  const auto status = Status::open(0, 2, 1, 1, "world");
  status->begin(batch_of(1), last_tick());
  const pid_t child = ::fork();
  if (child == 0) {
    CHECK_EQ(page(), -1);
    status->begin(batch_of(2), last_tick());
    status->end(2, nullptr);
    const auto own = Status::open(1, 2, 1, 9, "world");
    CHECK(own != nullptr && page() >= 0 && Shown(0)->group == 9);
    ::_exit(check::failures != 0);
  }
  int result = -1;
  ::waitpid(child, &result, 0);
  CHECK_EQ(result, 0);
  CHECK(Shown(0)->number == 1 && Shown(0)->ended == 0 && Shown(0)->group == 1);
}

TEST("the name of the job is on the page, also if it was told before") {
  describe_process("train-7", "");
  const auto status = Status::open(0, 1, 1, 1, "world");
  describe_process("", "torch, jax");
  status::Header header{};
  CHECK_EQ(::pread(page(), &header, sizeof(header), 0), static_cast<ssize_t>(sizeof(header)));
  CHECK(std::memcmp(header.magic, status::kMagic, sizeof(header.magic)) == 0);
  CHECK(header.pid == ::getpid() && header.entries == status::kEntries && header.started_at > 0);
  CHECK(std::string(header.job) == "train-7" && std::string(header.frameworks) == "torch, jax");
}

}  // namespace
