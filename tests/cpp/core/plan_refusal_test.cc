// Invalid arguments of plans: each is refused with its values in the message, and nothing wraps around.
#include <limits>
#include <numeric>

#include "a2a/plan.h"
#include "check.h"

namespace {

using namespace a2a;
using check::Note;
using check::Random;
using Counts = std::vector<int64_t>;
using Sizes = std::vector<size_t>;
using Wide = __int128;  // holds what overflows in the library's types

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr size_t kHuge = std::numeric_limits<size_t>::max();

#define REFUSED(message, ...) CHECK_THROWS(Code::invalid_argument, message, __VA_ARGS__)

struct Side {
  Counts counts, displs;
  size_t elems = 128;

  Layout layout() const { return {counts, displs}; }
};

Plan alltoallv(Rank rank, int size, const Side& send, const Side& recv, size_t elem_bytes = 8) {
  return Plan::alltoallv(rank, size, elem_bytes, send.layout(), send.elems, recv.layout(), recv.elems);
}

TEST("a rank outside its group is refused") {
  const Side none{{}, {}};
  REFUSED("rank 0: size = 0,", alltoallv(0, 0, none, none));
  REFUSED("rank 2: size = -3,", Plan::allgather(2, -3, 8));
  REFUSED("rank 2: no such rank in a group of 2 ranks", alltoallv(2, 2, none, none));
  REFUSED("rank -1: no such rank in a group of 2 ranks", Plan::alltoall_list(-1, 2, {}, {}));
  REFUSED("rank 5: no such rank in a group of 5 ranks", Plan::global_scatter(5, 5, 8, {}, {}));
  REFUSED("rank 7: no such rank in a group of 1 ranks", Plan::global_gather(7, 1, 8, {}, {}));
}

TEST("lists of a wrong length are refused") {
  const Side good{{1, 2}, {}};
  REFUSED("rank 1: send_counts has 3 entries for 2 ranks", alltoallv(1, 2, {{1, 2, 3}, {}}, good));
  REFUSED("rank 1: recv_counts has 0 entries for 2 ranks", alltoallv(1, 2, good, {{}, {}}));
  REFUSED("rank 0: send_displs has 1 entries for 2 ranks", alltoallv(0, 2, {{1, 2}, {0}}, good));
  REFUSED("rank 0: recv_displs has 3 entries for 2 ranks", alltoallv(0, 2, good, {{1, 2}, {0, 1, 3}}));
  REFUSED("rank 1: send_bytes has 1 entries for 2 ranks", Plan::alltoall_list(1, 2, Sizes{1}, Sizes{1, 1}));
  REFUSED("rank 1: recv_bytes has 3 entries for 2 ranks", Plan::alltoall_list(1, 2, Sizes{1, 1}, Sizes{1, 1, 1}));
  const Counts none, two = {1, 1}, three = {1, 1, 1}, four = {1, 1, 1, 1};
  REFUSED("rank 0: local_count has 3 entries and global_count 3;", Plan::global_scatter(0, 2, 8, three, three));
  REFUSED("rank 1: local_count has 2 entries and global_count 4;", Plan::global_scatter(1, 2, 8, two, four));
  REFUSED("rank 1: local_count has 0 entries and global_count 0;", Plan::global_gather(1, 2, 8, none, none));
}

TEST("negative values are refused") {
  const Side good{{1, 2}, {}};
  REFUSED("rank 0: send_counts[1] = -1 is negative", alltoallv(0, 2, {{1, -1}, {}}, good));
  REFUSED("rank 0: recv_counts[0] = -9223372036854775808 is negative", alltoallv(0, 2, good, {{-kMax - 1, 2}, {}}));
  REFUSED("rank 1: send_displs[0] = -7 is negative", alltoallv(1, 2, {{1, 2}, {-7, 9}}, good));
  REFUSED("rank 1: recv_displs[1] = -1 is negative", alltoallv(1, 2, good, {{1, 0}, {0, -1}}));
  const Counts zeros(4), bad = {0, 0, -5, 0};
  REFUSED("rank 0: local_count[2] = -5 is negative", Plan::global_scatter(0, 2, 8, bad, zeros));
  REFUSED("rank 0: global_count[2] = -5 is negative", Plan::global_gather(0, 2, 8, zeros, bad));
}

TEST("a segment that leaves its buffer is refused") {
  const Side good{{0, 40, 0}, {}};
  REFUSED("rank 2: recv_counts[1] = 40 at displacement 96 leaves a buffer of 128, each of 8 bytes",
          alltoallv(2, 3, good, {{0, 40, 0}, {0, 96, 0}}));
  REFUSED("rank 2: send_counts[2] = 9 at displacement 120 leaves a buffer of 128, each of 8 bytes",
          alltoallv(2, 3, {{60, 60, 9}, {}}, good));
  REFUSED("rank 0: send_counts[0] = 1 at displacement 9223372036854775807 leaves a buffer of 128, each of 8 bytes",
          alltoallv(0, 1, {{1}, {kMax}}, {{1}, {}}));
  REFUSED("rank 1: send_counts[1] = 9223372036854775807 at displacement 5 leaves a buffer of 128, each of 8 bytes",
          alltoallv(1, 2, {{5, kMax}, {}}, {{5, 5}, {}}));
  CHECK_EQ(alltoallv(2, 3, good, {{0, 40, 0}, {0, 88, 0}}).recv_extents()[0], 128 * 8);
  CHECK_EQ(alltoallv(2, 3, good, {{0, 40, 0}, {kMax, 88, kMax}}).recvs().size(), 1);  // an empty range needs no place
}

TEST("receive segments that overlap are refused, send segments may") {
  const Side good{{20, 0, 20}, {}}, same{{20, 0, 20}, {7, 7, 7}};
  REFUSED("rank 1: recv_counts[0] = 20 at displacement 0 overlaps recv_counts[2] = 20 at displacement 19",
          alltoallv(1, 3, good, {{20, 0, 20}, {0, 0, 19}}));
  REFUSED("rank 1: recv_counts[2] = 20 at displacement 5 overlaps recv_counts[0] = 20 at displacement 24",
          alltoallv(1, 3, good, {{20, 0, 20}, {24, 0, 5}}));
  REFUSED("overlaps", alltoallv(1, 3, good, same));
  CHECK_EQ(alltoallv(1, 3, good, {{20, 0, 20}, {20, 3, 0}}).recvs().size(), 2);
  const Plan plan = alltoallv(1, 3, same, good);
  CHECK_EQ(plan.sends().size(), 2);
  REFUSED("rank 1: cannot transpose: the send segments to rank 0 (bytes 56 to 216) and to rank 2 (bytes 56 to 216)",
          plan.transpose());
}

TEST("what a rank sends to itself is what it expects from itself") {
  REFUSED("rank 1: sends itself send_counts[1] = 40 but expects recv_counts[1] = 30",
          alltoallv(1, 2, {{1, 40}, {}}, {{2, 30}, {}}));
  REFUSED("rank 0: sends itself send_bytes[0] = 8 but expects recv_bytes[0] = 0",
          Plan::alltoall_list(0, 2, Sizes{8, 1}, Sizes{0, 2}));
  const Counts local = {1, 2, 3, 4}, global = {5, 6, 3, 7};
  REFUSED("rank 1: sends itself local_count[3] = 4 but expects global_count[3] = 7",
          Plan::global_scatter(1, 2, 8, local, global));
  REFUSED("rank 0: sends itself local_count[0] = 1 but expects global_count[0] = 5",
          Plan::global_gather(0, 2, 8, local, global));
}

TEST("what overflows is refused") {
  const Side one{{1}, {}, kHuge};
  REFUSED("rank 0: send_elems = 18446744073709551615 of 2 bytes each overflow 64 bits", alltoallv(0, 1, one, one, 2));
  REFUSED("rank 0: recv_elems = 18446744073709551615 of 2 bytes each overflow 64 bits",
          alltoallv(0, 1, {{1}, {}}, one, 2));
  CHECK_EQ(alltoallv(0, 1, one, one, 1).sends().size(), 1);
  REFUSED("rank 1: bytes_per_rank = 4611686018427387904 from each of 4 ranks", Plan::allgather(1, 4, size_t{1} << 62));
  CHECK_EQ(Plan::allgather(1, 3, size_t{1} << 62).recv_extents()[0], size_t{3} << 62);
  const Counts fits = {kMax, kMax, 1, 0}, wraps = {kMax, kMax, 1, 1};
  REFUSED("rank 0: local_count[3] = 1 after 18446744073709551615 rows of 1 bytes overflows",
          Plan::global_scatter(0, 2, 1, wraps, fits));
  REFUSED("rank 0: global_count[1] = 9223372036854775807 after 9223372036854775807 rows of 2 bytes overflows",
          Plan::global_gather(0, 2, 2, Counts(4), fits));
  CHECK_EQ(Plan::global_scatter(0, 2, 1, fits, fits).recv_extents()[0], kHuge);
  CHECK_EQ(Plan::alltoall_list(0, 2, Sizes{kHuge, kHuge}, Sizes{kHuge, 0}).sends().size(), 2);
}

// ---- values near every border, accepted exactly when arithmetic that cannot overflow says so ----

template <class T>
T near_a_border(Random& random) {
  static constexpr T borders[] = {0, 1, T{1} << 31, T{1} << 32, T{1} << 61, T{1} << 62, std::numeric_limits<T>::max()};
  if (random.chance(0.6)) return static_cast<T>(random.in(0, 3));
  return static_cast<T>(static_cast<uint64_t>(borders[random.in(0, 6)]) + static_cast<uint64_t>(random.in(-2, 2)));
}

Side random_side(Random& random, size_t size) {
  Side side{Counts(size), Counts(random.chance(0.5) ? size : 0), near_a_border<size_t>(random)};
  for (int64_t& count : side.counts) count = near_a_border<int64_t>(random);
  for (int64_t& displ : side.displs) displ = near_a_border<int64_t>(random);
  return side;
}

struct Interval {
  Wide begin, end;
};

// The elements of each peer, or nothing when the side is not acceptable on its own.
std::vector<Interval> acceptable(const Side& side, size_t elem_bytes) {
  std::vector<Interval> result;
  Wide next = 0;
  if (elem_bytes > 0 && side.elems > kHuge / elem_bytes) return {};
  for (size_t i = 0; i < side.counts.size(); ++i) {
    const Wide displ = side.displs.empty() ? next : side.displs[i];
    if (displ < 0 || side.counts[i] < 0) return {};
    if (side.counts[i] > 0) next = displ + side.counts[i];
    if (side.counts[i] > 0 && next > static_cast<Wide>(side.elems)) return {};
    result.push_back({displ, displ + side.counts[i]});
  }
  return result;
}

bool disjoint(std::span<const Interval> intervals) {
  for (const Interval& a : intervals) {
    for (const Interval& b : intervals) {
      if (&a != &b && a.begin < a.end && b.begin < b.end && a.begin < b.end && b.begin < a.end) return false;
    }
  }
  return true;
}

void check_exact(std::span<const Segment> segments, std::span<const Interval> intervals, size_t elem_bytes) {
  for (const Segment& s : segments) {
    const Interval& elems = intervals[static_cast<size_t>(s.peer)];
    CHECK(static_cast<Wide>(s.offset) == elems.begin * static_cast<Wide>(elem_bytes));
    CHECK(static_cast<Wide>(s.bytes) == (elems.end - elems.begin) * static_cast<Wide>(elem_bytes));
  }
}

TEST("alltoallv accepts exactly what fits, also near 2^63") {
  int accepted = 0, refused = 0;
  for (uint64_t i = 0; i < 100000; ++i) {
    const Note note("case", i);
    Random random(check::seed() + i);
    const size_t size = random.in(size_t{1}, size_t{3}), elem_bytes = near_a_border<size_t>(random);
    const size_t rank = random.in(size_t{0}, size - 1);
    const Side send = random_side(random, size);
    Side recv = random_side(random, size);
    if (random.chance(0.8)) recv.counts[rank] = send.counts[rank];
    const auto sends = acceptable(send, elem_bytes), recvs = acceptable(recv, elem_bytes);
    const bool good = !sends.empty() && !recvs.empty() && (disjoint(recvs) || elem_bytes == 0) &&
                      send.counts[rank] == recv.counts[rank];
    ++(good ? accepted : refused);
    try {
      const Plan plan = alltoallv(static_cast<Rank>(rank), static_cast<int>(size), send, recv, elem_bytes);
      if (!CHECK(good)) continue;
      check_exact(plan.sends(), sends, elem_bytes);
      check_exact(plan.recvs(), recvs, elem_bytes);
    } catch (const Error& error) {
      CHECK_EQ(error.code(), Code::invalid_argument);
      if (good) check::fail(error.what());
    }
  }
  CHECK(accepted > 5000 && refused > 5000);
}

TEST("global_scatter accepts exactly what fits, also near 2^63") {
  int accepted = 0, refused = 0;
  for (uint64_t i = 0; i < 50000; ++i) {
    const Note note("case", i);
    Random random(check::seed() + i);
    const size_t size = random.in(size_t{1}, size_t{3}), experts = random.in(size_t{1}, size_t{2});
    const size_t row_bytes = near_a_border<size_t>(random);
    Counts counts(size * experts);
    for (int64_t& count : counts) count = near_a_border<int64_t>(random);
    const Wide rows = std::accumulate(counts.begin(), counts.end(), Wide{0});
    const Wide limit = static_cast<Wide>(kHuge), bytes = static_cast<Wide>(row_bytes);
    const bool good = std::ranges::min(counts) >= 0 && rows <= limit && (bytes == 0 || rows <= limit / bytes);
    ++(good ? accepted : refused);
    try {
      const Plan plan = Plan::global_scatter(0, static_cast<int>(size), row_bytes, counts, counts);
      CHECK(good);
      CHECK(static_cast<Wide>(plan.send_extents()[0]) == rows * bytes);
      for (const Segment& s : plan.recvs()) CHECK(s.offset <= plan.recv_extents()[0] - s.bytes);
    } catch (const Error& error) {
      CHECK_EQ(error.code(), Code::invalid_argument);
      if (good) check::fail(error.what());
    }
  }
  CHECK(accepted > 5000 && refused > 5000);
}

}  // namespace
