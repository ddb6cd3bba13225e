// Schedules are pure, so the test simulates all ranks of a group in one process, in lockstep, portion by portion.
#include "core/schedule.h"

#include <cstring>
#include <limits>
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
using Schedule = std::vector<Portion>;

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

size_t at(int i) { return static_cast<size_t>(i); }

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

TEST("a rotation comes by the runs of every peer") {
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

// ---- portions ----

struct Member {
  Bytes send, recv, expected;
  std::vector<Run> sends, recvs;
};

// Appends one run of these bytes to `runs`. Pointers are made from offsets once the buffer has its size.
void append(std::vector<Run>& runs, Rank peer, size_t& end, size_t bytes) {
  runs.push_back({peer, nullptr, bytes});
  end += bytes;
}

void place(std::vector<Run>& runs, Bytes& buffer) {
  std::byte* next = buffer.data();
  for (Run& run : runs) next = (run.data = next) + run.bytes;
}

std::vector<Member> random_group(Random& random, int size) {
  std::vector<Member> group(at(size));
  std::vector<size_t> sent(at(size)), received(at(size));
  const double silent = random.in(0, 3) / 4.0;
  for (Rank a = 0; a < size; ++a) {
    for (Rank b = 0; b < size; ++b) {
      for (int k = random.chance(silent) ? 0 : random.in(1, 3); k > 0; --k) {
        const size_t bytes = random.in(size_t{1}, size_t{20});
        append(group[at(a)].sends, b, sent[at(a)], bytes);
        append(group[at(b)].recvs, a, received[at(b)], bytes);
      }
    }
  }
  for (size_t r = 0; r < at(size); ++r) {
    group[r].send = random_bytes(random, sent[r]);
    group[r].recv.resize(received[r]);
    place(group[r].sends, group[r].send);
    place(group[r].recvs, group[r].recv);
  }
  for (Rank b = 0; b < size; ++b) {
    for (const Member& a : group) {
      for (const Run& run : runs_with(a.sends, b)) {
        group[at(b)].expected.insert(group[at(b)].expected.end(), run.data, run.data + run.bytes);
      }
    }
  }
  return group;
}

std::vector<Run> pieces_with(std::span<const Run> pieces, Rank peer) {
  std::vector<Run> result;
  std::ranges::copy_if(pieces, std::back_inserter(result), [&](const Run& run) { return run.peer == peer; });
  return result;
}

// Runs the i-th portion of every rank.
void run_portion(const std::vector<Schedule>& schedules, size_t i, size_t max_bytes) {
  size_t sent = 0, received = 0, copied = 0;
  for (Rank a = 0; a < static_cast<Rank>(schedules.size()); ++a) {
    sent += schedules[at(a)][i].sends.size();
    received += schedules[at(a)][i].recvs.size();
    for (Rank b = 0; b < static_cast<Rank>(schedules.size()); ++b) {
      const auto s = pieces_with(schedules[at(a)][i].sends, b), r = pieces_with(schedules[at(b)][i].recvs, a);
      if (!CHECK_EQ(s.size(), r.size())) continue;
      for (size_t k = 0; k < s.size(); ++k, ++copied) {
        CHECK(s[k].bytes > 0 && s[k].bytes <= max_bytes);
        if (CHECK_EQ(s[k].bytes, r[k].bytes)) std::memcpy(r[k].data, s[k].data, s[k].bytes);
      }
    }
  }
  CHECK_EQ(copied, sent);
  CHECK_EQ(copied, received);
}

// The runs belong to the steps of the i-th window, in rotation order. At window 1 that leaves one peer at most, and no
// two ranks can have the same one: each batch is a partial permutation.
void check_steps(std::span<const Run> runs, Rank rank, int size, int direction, size_t i, int window) {
  std::vector<size_t> steps;
  for (const Run& run : runs) steps.push_back(at((direction * (run.peer - rank) + size) % size));
  CHECK(std::ranges::is_sorted(steps));
  for (const size_t step : steps) CHECK_EQ(step / at(window), i);
}

TEST("the portions of all ranks are the same exchange, in the same batches, cut alike") {
  for (uint64_t i = 0; i < 3000; ++i) {
    const Note note("case", i);
    Random random(check::seed() + i);
    const int size = random.chance(0.002) ? 64 : random.in(1, 16);
    const int window = random.chance(0.4) ? 1 : random.in(0, size + 2);
    const size_t max_bytes = random.chance(0.2) ? kNoLimit : random.in(size_t{1}, size_t{21});
    std::vector<Member> group = random_group(random, size);
    std::vector<Schedule> schedules;
    for (Rank r = 0; r < size; ++r) {
      schedules.push_back(portions(group[at(r)].sends, group[at(r)].recvs, r, size, window, max_bytes));
    }
    const int steps = window == 0 ? size : window;  // per batch
    for (Rank r = 0; r < size; ++r) {
      CHECK_EQ(schedules[at(r)].size(), (size + steps - 1) / steps);
      for (size_t k = 0; k < schedules[at(r)].size(); ++k) {
        check_steps(schedules[at(r)][k].sends, r, size, 1, k, steps);
        check_steps(schedules[at(r)][k].recvs, r, size, -1, k, steps);
      }
    }
    for (size_t k = 0; k < schedules[0].size(); ++k) run_portion(schedules, k, max_bytes);
    for (const Member& member : group) CHECK(member.recv == member.expected);
  }
}

TEST("a run is cut at each max_bytes, and not at all when it fits") {
  Bytes buffer(25);
  const Run run[] = {{0, buffer.data(), 25}};
  const Run cut[] = {{0, buffer.data(), 10}, {0, buffer.data() + 10, 10}, {0, buffer.data() + 20, 5}};
  CHECK_EQ(portions(run, run, 0, 1, 0, 10)[0].sends, cut);
  CHECK_EQ(portions(run, run, 0, 1, 1, 10)[0].recvs, cut);
  CHECK_EQ(portions(run, run, 0, 1, 0, 25)[0].sends, run);
  CHECK_EQ(portions(run, run, 0, 1, 0, 24)[0].sends.size(), 2);
  CHECK_EQ(portions({}, {}, 3, 5, 2, 1).size(), 3);
}

TEST("portions of nothing sensible are refused") {
  CHECK_THROWS(Code::invalid_argument, "rank 3: window = -1 and max_bytes = 8", portions({}, {}, 3, 4, -1, 8));
  CHECK_THROWS(Code::invalid_argument, "rank 3: window = 1 and max_bytes = 0", portions({}, {}, 3, 4, 1, 0));
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
      append(recvs, 0, end, bytes);
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
