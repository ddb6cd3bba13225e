// Plans are pure, so the test simulates all ranks of a group in one process: it makes their plans, compares them with
// each other, runs them with memcpy, and compares the bytes with the definition of the operation.
#include "a2a/plan.h"

#include <cstring>
#include <numeric>

#include "check.h"

namespace a2a {
std::ostream& operator<<(std::ostream& out, const Segment& s) {
  return out << '{' << s.peer << ", " << s.buffer << ", " << s.offset << ", " << s.bytes << '}';
}
}  // namespace a2a

namespace {

using namespace a2a;
using check::Note;
using check::Random;
using Counts = std::vector<int64_t>;
using Bytes = std::vector<std::byte>;
using Buffers = std::vector<Bytes>;  // of one rank, by Segment::buffer

constexpr std::byte kUntouched{0xEE};

size_t at(int64_t i) { return static_cast<size_t>(i); }

Bytes random_bytes(Random& random, size_t n) {
  Bytes bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

int random_size(Random& random) { return random.chance(0.002) ? 64 : random.in(1, 16); }

// ---- properties of every plan ----

std::span<const Segment> with(std::span<const Segment> segments, Rank peer) {
  const auto found = std::ranges::equal_range(segments, peer, {}, &Segment::peer);
  return {found.begin(), found.end()};
}

bool overlaps(std::span<const Segment> segments, std::span<const size_t> extents) {
  std::vector<std::vector<bool>> used;
  for (const size_t extent : extents) used.emplace_back(extent);
  for (const Segment& s : segments) {
    for (size_t i = s.offset; i < s.offset + s.bytes; ++i) {
      if (used[at(s.buffer)][i]) return true;
      used[at(s.buffer)][i] = true;
    }
  }
  return false;
}

void check_side(std::span<const Segment> segments, std::span<const size_t> extents, int size) {
  CHECK(std::ranges::is_sorted(segments, {}, &Segment::peer));
  std::vector<size_t> ends(extents.size());
  for (const Segment& s : segments) {
    CHECK(s.peer >= 0 && s.peer < size);
    CHECK(s.bytes > 0);
    size_t& end = ends.at(at(s.buffer));
    end = std::max(end, s.offset + s.bytes);
  }
  CHECK_EQ(ends, extents);
}

// Runs the plans of all ranks: sends[r] and recvs[r] are the buffers of rank r.
void run(const std::vector<Plan>& plans, const std::vector<Buffers>& sends, std::vector<Buffers>& recvs) {
  for (const Plan& plan : plans) {
    check_side(plan.sends(), plan.send_extents(), plan.size());
    check_side(plan.recvs(), plan.recv_extents(), plan.size());
    CHECK(!overlaps(plan.recvs(), plan.recv_extents()));
  }
  for (const Plan& from : plans) {
    for (const Plan& to : plans) {
      const auto s = with(from.sends(), to.rank()), r = with(to.recvs(), from.rank());
      if (!CHECK_EQ(s.size(), r.size())) continue;
      for (size_t k = 0; k < s.size(); ++k) {
        if (!CHECK_EQ(s[k].bytes, r[k].bytes)) continue;
        std::memcpy(recvs[at(to.rank())][at(r[k].buffer)].data() + r[k].offset,
                    sends[at(from.rank())][at(s[k].buffer)].data() + s[k].offset, s[k].bytes);
      }
    }
  }
}

std::vector<Plan> transposed(const std::vector<Plan>& plans) {
  std::vector<Plan> result;
  for (const Plan& plan : plans) {
    result.push_back(plan.transpose());
    CHECK_EQ(result.back().sends(), plan.recvs());
    CHECK_EQ(result.back().recvs(), plan.sends());
    CHECK_EQ(result.back().send_extents(), plan.recv_extents());
    CHECK_EQ(result.back().recv_extents(), plan.send_extents());
  }
  return result;
}

// ---- alltoallv ----

// The places of one rank's parts in one of its buffers.
struct Place {
  Counts counts, displs, given_displs;  // given_displs are empty when the parts are packed
  size_t elems = 0;

  Layout layout() const { return {counts, given_displs}; }
};

enum class Kind { packed, gaps, permuted, anywhere };

Place place(Random& random, Counts counts, Kind kind) {
  Place p{std::move(counts), {}, {}, 0};
  p.displs.resize(p.counts.size());
  std::vector<size_t> order(p.counts.size());
  std::iota(order.begin(), order.end(), 0);
  if (kind == Kind::permuted) std::ranges::shuffle(order, random);
  int64_t next = 0;
  for (const size_t i : order) {
    if (kind != Kind::packed) next += random.in(0, 3);
    p.displs[i] = next;
    next += p.counts[i];
  }
  if (kind == Kind::anywhere) {
    for (size_t i = 0; i < order.size(); ++i) p.displs[i] = random.in(int64_t{0}, next - p.counts[i]);
  }
  if (kind != Kind::packed) p.given_displs = p.displs;
  p.elems = at(next + random.in(0, 2));
  return p;
}

struct Alltoallv {
  size_t elem_bytes;
  std::vector<Place> send, recv;  // by rank
  std::vector<Plan> plans;
};

Alltoallv random_alltoallv(Random& random, int size) {
  Alltoallv a{at(random.in(1, 16)), {}, {}, {}};
  const double zeros = random.in(0, 3) / 3.0;
  std::vector<Counts> counts(at(size), Counts(at(size)));
  for (Counts& row : counts) {
    for (int64_t& count : row) count = random.chance(zeros) ? 0 : random.in(0, 6);
  }
  for (size_t r = 0; r < at(size); ++r) {
    Counts column;
    for (const Counts& row : counts) column.push_back(row[r]);
    a.send.push_back(place(random, counts[r], Kind{random.in(0, 3)}));
    a.recv.push_back(place(random, column, Kind{random.in(0, 2)}));
    a.plans.push_back(Plan::alltoallv(static_cast<Rank>(r), size, a.elem_bytes, a.send[r].layout(), a.send[r].elems,
                                      a.recv[r].layout(), a.recv[r].elems));
  }
  return a;
}

// Copies each element that rank a sends to rank b, or back.
void copy_elements(const Alltoallv& x, std::vector<Buffers>& sends, std::vector<Buffers>& recvs, bool back) {
  for (size_t a = 0; a < x.send.size(); ++a) {
    for (size_t b = 0; b < x.send.size(); ++b) {
      for (size_t i = 0; i < at(x.send[a].counts[b]) * x.elem_bytes; ++i) {
        std::byte& here = sends[a][0][at(x.send[a].displs[b]) * x.elem_bytes + i];
        std::byte& there = recvs[b][0][at(x.recv[b].displs[a]) * x.elem_bytes + i];
        (back ? here : there) = back ? there : here;
      }
    }
  }
}

TEST("alltoallv moves the bytes of its definition, and its transpose the same bytes back") {
  int reversible = 0, irreversible = 0;
  for (uint64_t i = 0; i < 4000; ++i) {
    const Note note("case", i);
    Random random(check::seed() + i);
    const Alltoallv x = random_alltoallv(random, random_size(random));
    std::vector<Buffers> sends, recvs, untouched;
    for (size_t r = 0; r < x.plans.size(); ++r) {
      sends.push_back({random_bytes(random, x.send[r].elems * x.elem_bytes)});
      recvs.push_back({Bytes(x.recv[r].elems * x.elem_bytes, kUntouched)});
      untouched.push_back({Bytes(sends[r][0].size(), kUntouched)});
    }
    std::vector<Buffers> expected = recvs;
    copy_elements(x, sends, expected, false);
    run(x.plans, sends, recvs);
    CHECK(recvs == expected);

    const auto stuck =
        std::ranges::find_if(x.plans, [](const Plan& p) { return overlaps(p.sends(), p.send_extents()); });
    if (stuck != x.plans.end()) {
      ++irreversible;
      CHECK_THROWS(Code::invalid_argument, "cannot transpose", stuck->transpose());
      continue;
    }
    ++reversible;
    std::vector<Buffers> returned = untouched;
    copy_elements(x, untouched, expected, true);
    run(transposed(x.plans), recvs, returned);
    CHECK(returned == untouched);
  }
  CHECK(reversible > 500 && irreversible > 500);
}

// ---- global_scatter, global_gather ----

struct Routing {
  size_t size, experts, row_bytes;
  std::vector<Counts> local, global;  // by rank

  using Factory = Plan(Rank, int, size_t, std::span<const int64_t>, std::span<const int64_t>);
  std::vector<Plan> plans(Factory factory) const {
    std::vector<Plan> result;
    for (size_t r = 0; r < size; ++r) {
      result.push_back(factory(static_cast<Rank>(r), static_cast<int>(size), row_bytes, local[r], global[r]));
    }
    return result;
  }

  std::vector<Buffers> buffers(const std::vector<Counts>& counts, std::byte fill) const {
    std::vector<Buffers> result;
    for (const Counts& c : counts) result.push_back({Bytes(at(std::reduce(c.begin(), c.end())) * row_bytes, fill)});
    return result;
  }
};

Routing routing(size_t experts, size_t row_bytes, std::vector<Counts> local) {
  Routing x{local.size(), experts, row_bytes, std::move(local), {}};
  for (size_t r = 0; r < x.size; ++r) {
    x.global.emplace_back();
    for (size_t i = 0; i < x.size * experts; ++i)
      x.global[r].push_back(x.local[i / experts][r * experts + i % experts]);
  }
  return x;
}

Routing random_routing(Random& random) {
  const size_t experts = at(random.in(1, 8));
  const double zeros = random.in(0, 3) / 3.0;
  std::vector<Counts> local(at(random_size(random)));
  for (Counts& counts : local) {
    counts.resize(local.size() * experts);
    for (int64_t& count : counts) count = random.chance(zeros) ? 0 : random.in(0, 4);
  }
  return routing(experts, at(random.in(1, 16)), std::move(local));
}

// Returns the result of every rank as a concatenation: for each of its experts, from each rank, that rank's rows for
// the expert.
std::vector<Buffers> scattered(const Routing& x, const std::vector<Buffers>& sends) {
  std::vector<Buffers> result(x.size, Buffers(1));
  for (size_t r = 0; r < x.size; ++r) {
    for (size_t e = 0; e < x.experts; ++e) {
      for (size_t from = 0; from < x.size; ++from) {
        const Counts& counts = x.local[from];
        const int64_t skip = std::reduce(counts.begin(), counts.begin() + static_cast<ptrdiff_t>(r * x.experts + e));
        const auto begin = sends[from][0].begin() + skip * static_cast<int64_t>(x.row_bytes);
        const auto end = begin + counts[r * x.experts + e] * static_cast<int64_t>(x.row_bytes);
        result[r][0].insert(result[r][0].end(), begin, end);
      }
    }
  }
  return result;
}

TEST("global_scatter sorts rows by expert, and global_gather is its inverse") {
  for (uint64_t i = 0; i < 3000; ++i) {
    const Note note("case", i);
    Random random(check::seed() + i);
    const Routing x = random_routing(random);
    std::vector<Buffers> sends = x.buffers(x.local, kUntouched), recvs = x.buffers(x.global, kUntouched);
    std::vector<Buffers> returned = sends;
    for (Buffers& buffers : sends) buffers[0] = random_bytes(random, buffers[0].size());
    const std::vector<Plan> scatter = x.plans(Plan::global_scatter), gather = x.plans(Plan::global_gather);

    run(scatter, sends, recvs);
    CHECK(recvs == scattered(x, sends));
    run(gather, recvs, returned);
    CHECK(returned == sends);

    const std::vector<Plan> back = transposed(scatter);
    for (size_t r = 0; r < x.size; ++r) {
      CHECK_EQ(gather[r].sends(), back[r].sends());
      CHECK_EQ(gather[r].recvs(), back[r].recvs());
      CHECK_EQ(gather[r].send_extents()[0], recvs[r][0].size());
      CHECK_EQ(gather[r].recv_extents()[0], sends[r][0].size());
    }
  }
}

TEST("global_scatter and global_gather do what Paddle documents") {
  const Routing x = routing(2, 2, {{2, 1, 1, 1}, {1, 1, 2, 1}});
  CHECK_EQ(x.global, x.local);
  const auto rows = [](std::initializer_list<int> list) {  // each row has two consecutive numbers; `list` has the first
    Bytes bytes;
    for (const int first : list) {
      bytes.push_back(std::byte(first));
      bytes.push_back(std::byte(first + 1));
    }
    return Buffers{bytes};
  };
  const std::vector<Buffers> in(2, rows({1, 3, 5, 7, 9}));
  std::vector<Buffers> out = x.buffers(x.global, kUntouched);
  run(x.plans(Plan::global_scatter), in, out);
  CHECK_EQ(out[0], rows({1, 3, 1, 5, 3}));
  CHECK_EQ(out[1], rows({7, 5, 7, 9, 9}));
  run(x.plans(Plan::global_gather), in, out);
  CHECK_EQ(out[0], rows({1, 3, 7, 1, 7}));
  CHECK_EQ(out[1], rows({5, 9, 3, 5, 9}));
}

// ---- the list form, allgather ----

TEST("alltoall_list moves whole buffers") {
  for (uint64_t i = 0; i < 2000; ++i) {
    const Note note("case", i);
    Random random(check::seed() + i);
    const size_t size = at(random_size(random));
    std::vector<Buffers> sends(size), recvs(size, Buffers(size)), expected(size, Buffers(size));
    for (size_t a = 0; a < size; ++a) {
      for (size_t b = 0; b < size; ++b) {
        sends[a].push_back(random_bytes(random, random.chance(0.3) ? 0 : at(random.in(1, 40))));
        expected[b][a] = sends[a][b];
        recvs[b][a].resize(sends[a][b].size());
      }
    }
    std::vector<Plan> plans;
    for (size_t r = 0; r < size; ++r) {
      std::vector<size_t> send_bytes, recv_bytes;
      for (const Bytes& buffer : sends[r]) send_bytes.push_back(buffer.size());
      for (const Bytes& buffer : recvs[r]) recv_bytes.push_back(buffer.size());
      plans.push_back(Plan::alltoall_list(static_cast<Rank>(r), static_cast<int>(size), send_bytes, recv_bytes));
    }
    run(plans, sends, recvs);
    CHECK(recvs == expected);
    run(transposed(plans), recvs, sends);
    CHECK(recvs == expected);
  }
}

TEST("allgather gives everybody everything") {
  for (const int size : {1, 2, 3, 8, 64}) {
    for (const size_t bytes : {0, 1, 7}) {
      Random random(check::seed());
      std::vector<Plan> plans;
      std::vector<Buffers> sends, recvs(at(size), {Bytes(at(size) * bytes, kUntouched)});
      Bytes all;
      for (Rank r = 0; r < size; ++r) {
        plans.push_back(Plan::allgather(r, size, bytes));
        sends.push_back({random_bytes(random, bytes)});
        all.insert(all.end(), sends.back()[0].begin(), sends.back()[0].end());
      }
      run(plans, sends, recvs);
      for (const Buffers& received : recvs) CHECK_EQ(received[0], all);
      if (size == 1 || bytes == 0) transposed(plans);
    }
  }
  CHECK_THROWS(Code::invalid_argument,
               "rank 1: cannot transpose: the send segments to rank 0 (bytes 0 to 5) and to rank 1 (bytes 0 to 5)",
               Plan::allgather(1, 2, 5).transpose());
}

TEST("in a scan each rank's elements go to those above it, and to itself unless it is exclusive") {
  for (int size = 1; size <= 5; ++size) {
    for (const bool exclusive : {false, true}) {
      std::vector<Plan> plans;
      for (Rank r = 0; r < size; ++r) plans.push_back(Plan::scan(r, size, 4, 3, exclusive));
      size_t sends = 0, recvs = 0;
      for (Rank from = 0; from < size; ++from) {
        const Plan& plan = plans[static_cast<size_t>(from)];
        CHECK(plan.folds() && plan.stages().size() == 1);
        sends += plan.sends().size();
        recvs += plan.recvs().size();
        for (const Segment& segment : plan.sends()) {
          CHECK_EQ(segment.bytes, 12);
          CHECK(exclusive ? segment.peer > from : segment.peer >= from);
          const auto theirs = plans[static_cast<size_t>(segment.peer)].recvs();
          CHECK_EQ(std::ranges::count(theirs, from, &Segment::peer), 1);
        }
      }
      CHECK_EQ(sends, recvs);
      CHECK_EQ(sends, static_cast<size_t>(size * (size + (exclusive ? -1 : 1)) / 2));
    }
  }
}

TEST("elements of no bytes need no segments") {
  const Counts counts = {3, 4};
  const Plan plan = Plan::alltoallv(0, 2, 0, {counts}, 7, {counts}, 7);
  CHECK(plan.sends().empty() && plan.recvs().empty());
  CHECK_EQ(plan.recv_extents()[0], 0);
  CHECK(Plan::global_scatter(0, 2, 0, counts, counts).sends().empty());
  CHECK_THROWS(Code::invalid_argument, "leaves a buffer of 6, each of 0 bytes",
               Plan::alltoallv(0, 2, 0, {counts}, 6, {counts}, 7));
}

}  // namespace
