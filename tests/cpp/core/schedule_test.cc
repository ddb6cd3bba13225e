// Runs of memory, the order in which a rank meets its peers, and copies within a rank.
#include "core/schedule.h"

#include <cstring>
#include <set>

#include "check.h"

namespace a2a {
std::ostream& operator<<(std::ostream& out, const Run& run) {
  return out << '{' << run.peer << ", " << static_cast<const void*>(run.data) << ", " << run.bytes << '}';
}
}  // namespace a2a

namespace {

using namespace a2a;
using check::Note;
using check::Random;
using Bytes = std::vector<std::byte>;

Bytes random_bytes(Random& random, size_t n) {
  Bytes bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

TEST("runs are where the segments of a plan lie") {
  Bytes one(10), two(20);
  std::byte* const base[] = {one.data(), two.data()};
  const Segment segments[] = {{0, 1, 3, 4}, {0, 0, 0, 10}, {2, 1, 19, 1}};
  const Run expected[] = {{0, two.data() + 3, 4}, {0, one.data(), 10}, {2, two.data() + 19, 1}};
  Batch batch;
  batch.sends.resize(7);
  set_runs(batch, {segments, base, {}}, {{}, base, {}});
  CHECK_EQ(batch.sends, expected);
  CHECK(batch.recvs.empty());
  CHECK(batch.strides == nullptr);
  set_runs(batch, {{}, base, {}}, {segments, base, {}});
  CHECK(batch.sends.empty());
  CHECK_EQ(batch.recvs, expected);
}

TEST("the runs with one peer") {
  const std::vector<Run> runs = {{0, nullptr, 1}, {2, nullptr, 2}, {2, nullptr, 3}, {5, nullptr, 4}};
  CHECK_EQ(runs_with(runs, 0), std::span(runs).subspan(0, 1));
  CHECK_EQ(runs_with(runs, 2), std::span(runs).subspan(1, 2));
  CHECK_EQ(runs_with(runs, 5), std::span(runs).subspan(3, 1));
  for (const Rank nobody : {-1, 1, 3, 6}) CHECK(runs_with(runs, nobody).empty());
  CHECK(runs_with({}, 0).empty());
}

TEST("a rotation visits the runs of every peer") {
  check::Random random(check::seed());
  for (int round = 0; round < 500; ++round) {
    const int size = random.in(1, 9);
    const Rank rank = random.in(0, size - 1);
    std::vector<Run> sends, recvs;
    for (Rank peer = 0; peer < size; ++peer) {
      sends.insert(sends.end(), random.in(size_t{0}, size_t{2}), {peer, nullptr, random.in(size_t{1}, size_t{99})});
      recvs.insert(recvs.end(), random.in(size_t{0}, size_t{2}), {peer, nullptr, random.in(size_t{1}, size_t{99})});
    }
    Rotation rotation(sends, recvs, rank, size);
    for (int step = 0; step < size; ++step) {
      const auto [to, from] = rotation.next();
      CHECK_EQ(to, runs_with(sends, send_peer(rank, size, step)));
      CHECK_EQ(from, runs_with(recvs, recv_peer(rank, size, step)));
    }
  }
}

TEST("at each step of the rotation every rank is the target of exactly one") {
  for (const int size : {1, 2, 3, 4, 7, 16, 64}) {
    std::set<std::pair<Rank, Rank>> pairs;
    for (int step = 0; step < size; ++step) {
      std::set<Rank> targets;
      for (Rank r = 0; r < size; ++r) {
        const Rank to = send_peer(r, size, step);
        targets.insert(to);
        pairs.emplace(r, to);
        CHECK_EQ(recv_peer(to, size, step), r);
      }
      CHECK_EQ(targets.size(), size);
    }
    CHECK_EQ(pairs.size(), size * size);
    CHECK_EQ(send_peer(size - 1, size, 0), size - 1);
  }
}

// Returns runs with some of the peers, sorted by peer; each is known by its bytes.
std::vector<Run> random_runs(Random& random, int size) {
  std::vector<Run> runs;
  for (Rank peer = 0; peer < size; ++peer) {
    for (int k = random.in(0, 3); k > 0; --k) runs.push_back({peer, nullptr, runs.size() + 1});
  }
  return runs;
}

void append(std::vector<Run>& runs, std::span<const Run> more) { runs.insert(runs.end(), more.begin(), more.end()); }

TEST("a rotation goes through all runs, those of each step together") {
  for (uint64_t i = 0; i < 3000; ++i) {
    const Note note("case", i);
    Random random(check::seed() + i);
    const int size = random.in(1, 16);
    const Rank rank = random.in(0, size - 1);
    const auto sends = random_runs(random, size), recvs = random_runs(random, size);
    std::vector<Run> sent, received;
    a2a::Rotation rotation(sends, recvs, rank, size);
    for (int step = 0; step < size; ++step) {
      const auto [to, from] = rotation.next();
      CHECK(std::ranges::equal(to, runs_with(sends, send_peer(rank, size, step))));
      CHECK(std::ranges::equal(from, runs_with(recvs, recv_peer(rank, size, step))));
      append(sent, to);
      append(received, from);
    }
    std::ranges::sort(sent, {}, &Run::bytes);
    std::ranges::sort(received, {}, &Run::bytes);
    CHECK(sent == sends && received == recvs);
  }
}

// ---- copy_self ----

TEST("copy_self copies the runs of this rank and no others") {
  Bytes from = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}}, to(4);
  const Run sends[] = {{0, from.data(), 1}, {1, from.data() + 1, 2}, {1, from.data() + 3, 1}};
  const Run recvs[] = {{1, to.data() + 2, 2}, {1, to.data(), 1}, {3, to.data() + 1, 1}};
  copy_self(sends, recvs, 1);
  CHECK_EQ(to, (Bytes{std::byte{4}, std::byte{0}, std::byte{2}, std::byte{3}}));
  copy_self(sends, recvs, 2);
  copy_self({}, {}, 0);
  CHECK_EQ(to[1], std::byte{0});
}

TEST("copy_self within one buffer receives what was there before the call") {
  for (uint64_t i = 0; i < 5000; ++i) {
    const Note note("case", i);
    Random random(check::seed() + i);
    Bytes memory = random_bytes(random, 64);
    std::vector<Run> sends, recvs;
    size_t end = 0;  // receives do not overlap each other
    for (int k = random.in(1, 4); k > 0; --k) {
      const size_t bytes = random.in(size_t{1}, size_t{12});
      sends.push_back({0, memory.data() + random.in(size_t{0}, 64 - bytes), bytes});
      recvs.push_back({0, nullptr, bytes});
      end += bytes;
    }
    std::ranges::shuffle(recvs, random);
    std::byte* next = memory.data() + random.in(size_t{0}, 64 - end);
    for (Run& run : recvs) next = (run.data = next) + run.bytes;
    for (size_t k = 0; k < recvs.size(); ++k)
      recvs[k].bytes = sends[k].bytes = std::min(recvs[k].bytes, sends[k].bytes);

    const Bytes before = memory;
    Bytes expected = memory;
    for (size_t k = 0; k < sends.size(); ++k) {
      std::memcpy(expected.data() + (recvs[k].data - memory.data()), before.data() + (sends[k].data - memory.data()),
                  sends[k].bytes);
    }
    copy_self(sends, recvs, 0);
    CHECK(memory == expected);
  }
}

}  // namespace
