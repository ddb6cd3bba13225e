// The courses of operations between hosts are pure, so the test makes those of all ranks in one process, and copies
// bytes by them.
#include "transport/hosts/course.h"

#include <cstring>
#include <numeric>

#include "a2a/plan.h"
#include "check.h"
#include "transport/hosts/runs.h"
#include "transport/hosts/shares.h"

namespace {

using namespace a2a;
using check::Random;
using hosts::Course;
using hosts::Places;

constexpr DType kInt32{0, 32, 1};
using Elements = std::vector<int32_t>;

size_t at(Rank rank) { return static_cast<size_t>(rank); }

Places random_places(Random& random) {
  const int size = random.in(2, 9), hosts = random.in(2, size);
  Places places;
  std::vector<int> numbers(at(hosts), -1);
  for (Rank rank = 0; rank < size; ++rank) {
    const int left = static_cast<int>(std::ranges::count(numbers, -1));
    int host = random.in(0, hosts - 1);
    if (left == size - rank) host = static_cast<int>(std::ranges::find(numbers, -1) - numbers.begin());
    if (numbers[at(host)] < 0) {
      numbers[at(host)] = places.hosts();
      places.ranks.emplace_back();
    }
    places.host.push_back(numbers[at(host)]);
    places.ranks[at(numbers[at(host)])].push_back(rank);
  }
  return places;
}

// One rank, with its part of an operation.
struct Member {
  Elements send, recv;
  Batch batch;
  hosts::Scratch scratch;
  std::unique_ptr<Course> course;
};

struct Group {
  explicit Group(Random& random) : places(random_places(random)), members(at(places.size())) {}

  // Makes the members of plan(rank) over tensors of so many elements.
  template <class Make>
  void begin(const Make& plan, Op op, Fold fold, size_t sent, size_t received, Half half = Half::whole) {
    for (Rank rank = 0; rank < places.size(); ++rank) {
      Member& member = members[at(rank)];
      if (half != Half::second) {
        member.send.resize(sent);
        for (size_t i = 0; i < sent; ++i) member.send[i] = rank * 1'000'000 + static_cast<int32_t>(i);
        member.recv.assign(received, -1);
      }
      const Plan whole = plan(rank);
      const Plan& made = half == Half::second ? *whole.next() : whole;
      auto* const from = reinterpret_cast<std::byte*>((half == Half::second ? member.recv : member.send).data());
      auto* const to = reinterpret_cast<std::byte*>(member.recv.data());
      member.batch = {};
      set_runs(member.batch, {made.sends(), {&from, 1}, {}}, {made.recvs(), {&to, 1}, {}});
      member.batch.signature = {op, Memory::host, kInt32, 1, 0, half == Half::second ? Fold::none : fold};
      member.batch.half = half;
      member.course = hosts::course_of(member.batch, rank, places, member.scratch);
    }
  }

  bool in_turn() const {
    return members[0].course != nullptr && (members[0].course->here_first || members[0].course->here_again);
  }

  // Both ends of a pair have the same bytes.
  static void copy(std::span<const Run> from, std::span<const Run> to) {
    std::vector<std::byte> bytes;
    for (const Run& run : from) bytes.insert(bytes.end(), run.data, run.data + run.bytes);
    if (!CHECK_EQ(bytes.size(), hosts::bytes_of(to))) return;
    size_t done = 0;
    for (const Run& run : to) {
      std::memcpy(run.data, bytes.data() + done, run.bytes);
      done += run.bytes;
    }
  }

  void exchange_here(std::optional<Batch> Course::* which, bool folds) {
    for (const auto& mates : places.ranks) {
      for (size_t to = 0; to < mates.size(); ++to) {
        const auto& receiving = (*members[at(mates[to])].course).*which;
        if (!receiving) return;
        std::vector<std::vector<std::byte>> parts;
        for (size_t from = 0; from < mates.size(); ++from) {
          const auto sent = runs_with(((*members[at(mates[from])].course).*which)->sends, static_cast<Rank>(to));
          const auto received = runs_with(receiving->recvs, static_cast<Rank>(from));
          if (!folds) {
            copy(sent, received);
            continue;
          }
          auto& part = parts.emplace_back(hosts::bytes_of(received));
          const Run there{0, part.data(), part.size()};
          copy(sent, {&there, 1});
        }
        if (!folds || receiving->recvs.empty()) continue;
        const Run& output = receiving->recvs[0];
        std::vector<const std::byte*> all;
        for (const auto& part : parts) all.push_back(part.data());
        Folder(receiving->signature.fold, kInt32).fold(all, output.bytes / sizeof(int32_t), output.data);
      }
    }
  }

  // Returns how many bytes have gone from host to host.
  size_t run(bool folds) {
    size_t far = 0;
    exchange_here(&Course::here, folds);
    for (Rank to = 0; to < places.size(); ++to) {
      for (Rank from = 0; from < places.size(); ++from) {
        if (places.host_of(from) == places.host_of(to)) continue;
        const auto sent = runs_with(members[at(from)].course->between.sends, to);
        copy(sent, runs_with(members[at(to)].course->between.recvs, from));
        far += hosts::bytes_of(sent);
      }
    }
    for (Member& member : members) {
      while (member.course->fold && !member.course->fold->step()) {
      }
    }
    exchange_here(&Course::here_again, false);
    return far;
  }

  Elements sum() const {
    Elements sum(members[0].send.size());
    for (const Member& member : members) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += member.send[i];
    }
    return sum;
  }

  Places places;
  std::vector<Member> members;
};

std::vector<int64_t> random_counts(Random& random, int size, size_t most) {
  std::vector<int64_t> counts;
  for (int i = 0; i < size; ++i) {
    counts.push_back(random.chance(0.2) ? 0 : random.in(int64_t{0}, static_cast<int64_t>(most)));
  }
  return counts;
}

size_t total(const std::vector<int64_t>& counts) {
  return static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
}

}  // namespace

TEST("the ranks of a host share all that the others have, evenly") {
  Random random(check::seed());
  for (int round = 0; round < 300; ++round) {
    const check::Note note("round", static_cast<uint64_t>(round));
    const Places places = random_places(random);
    const size_t unit = random.in(size_t{1}, size_t{80});
    std::vector<size_t> parts;
    for (Rank rank = 0; rank < places.size(); ++rank) {
      parts.push_back(random.chance(0.3) ? 0 : unit * random.in(size_t{0}, size_t{50}));
    }
    for (int host = 0; host < places.hosts(); ++host) {
      std::vector<size_t> seen(parts.size()), carried(parts.size());
      size_t all = 0;
      for (const hosts::Piece& piece : shares(places, host, parts, unit)) {
        CHECK(places.host_of(piece.owner) != host && places.host_of(piece.carrier) == host && piece.bytes > 0);
        CHECK_EQ(piece.offset, seen[at(piece.owner)]);
        seen[at(piece.owner)] += piece.bytes;
        carried[at(piece.carrier)] += piece.bytes;
        all += piece.bytes;
      }
      const size_t fair = all / places.ranks_of(host).size() + unit;
      for (Rank rank = 0; rank < places.size(); ++rank) {
        CHECK_EQ(seen[at(rank)], places.host_of(rank) == host ? 0 : parts[at(rank)]);
        CHECK(carried[at(rank)] <= fair);
      }
    }
  }
}

TEST("a reduce_scatter: every part is folded once, and where hosts take turns comes once from each") {
  Random random(check::seed());
  int turns = 0;
  for (int round = 0; round < 200; ++round) {
    const check::Note note("round", static_cast<uint64_t>(round));
    Group group(random);
    const int size = group.places.size();
    const auto counts = random_counts(random, size, random.chance(0.5) ? 100 : 30'000);
    group.begin([&](Rank rank) { return Plan::reduce_scatter(rank, size, sizeof(int32_t), counts); },
                Op::reduce_scatter, Fold::sum, total(counts), 30'000);
    const size_t far = group.run(true);
    if (group.in_turn()) {
      ++turns;
      CHECK_EQ(far, total(counts) * sizeof(int32_t) * (at(group.places.hosts()) - 1));
    }
    const Elements sum = group.sum();
    size_t begin = 0;
    for (Rank rank = 0; rank < size; ++rank) {
      const auto count = static_cast<size_t>(counts[at(rank)]);
      const Elements& recv = group.members[at(rank)].recv;
      CHECK(std::equal(recv.begin(), recv.begin() + static_cast<ptrdiff_t>(count),
                       sum.begin() + static_cast<ptrdiff_t>(begin)));
      CHECK(std::all_of(recv.begin() + static_cast<ptrdiff_t>(count), recv.end(), [](int32_t x) { return x == -1; }));
      begin += count;
    }
  }
  CHECK(turns > 20 && turns < 180);
}

TEST("an allreduce in one exchange and in parts, and a reduce") {
  Random random(check::seed());
  for (int round = 0; round < 200; ++round) {
    const check::Note note("round", static_cast<uint64_t>(round));
    Group group(random);
    const int size = group.places.size();
    const size_t elems = random.in(size_t{0}, random.chance(0.5) ? size_t{40} : size_t{60'000});
    const Rank root = random.in(0, size - 1);
    for (const bool in_parts : {false, true}) {
      const auto plan = [&](Rank rank) { return Plan::allreduce(rank, size, sizeof(int32_t), elems, in_parts); };
      group.begin(plan, Op::allreduce, Fold::sum, elems, elems, in_parts ? Half::first : Half::whole);
      size_t far = group.run(true);
      CHECK_EQ(group.in_turn(), in_parts);
      const Elements sum = group.sum();
      if (in_parts) {
        group.begin(plan, Op::allreduce, Fold::sum, elems, elems, Half::second);
        far += group.run(false);
        CHECK_EQ(far, 2 * elems * sizeof(int32_t) * (at(group.places.hosts()) - 1));
      }
      for (const Member& member : group.members) CHECK(member.recv == sum);
    }
    group.begin([&](Rank rank) { return Plan::reduce(rank, size, root, elems * sizeof(int32_t)); }, Op::reduce,
                Fold::sum, elems, elems);
    group.run(true);
    for (Rank rank = 0; rank < size; ++rank) {
      CHECK(group.members[at(rank)].recv == (rank == root ? group.sum() : Elements(elems, -1)));
    }
  }
}

TEST("what goes to all comes once to each host that takes turns") {
  Random random(check::seed());
  for (int round = 0; round < 200; ++round) {
    const check::Note note("round", static_cast<uint64_t>(round));
    Group group(random);
    const int size = group.places.size();
    const auto counts = random_counts(random, size, 60'000);
    const Rank root = random.in(0, size - 1);
    const size_t all = total(counts), elems = random.in(size_t{0}, size_t{60'000}), once = at(group.places.hosts()) - 1;
    group.begin([&](Rank rank) { return Plan::broadcast(rank, size, root, elems * sizeof(int32_t)); }, Op::broadcast,
                Fold::none, elems, elems);
    if (group.in_turn()) {
      CHECK_EQ(group.run(false), elems * sizeof(int32_t) * once);
      for (Rank rank = 0; rank < size; ++rank) {
        CHECK(rank == root || group.members[at(rank)].recv == group.members[at(root)].send);
      }
    }
    const auto gather = [&](Rank rank) {
      const std::vector<int64_t> sent(at(size), counts[at(rank)]), nowhere(at(size), 0);
      return Plan::alltoallv(rank, size, sizeof(int32_t), {sent, nowhere}, 60'000, {counts, {}}, all);
    };
    group.begin(gather, Op::allgatherv, Fold::none, 60'000, all);
    if (!group.in_turn()) continue;
    CHECK_EQ(group.run(false), all * sizeof(int32_t) * once);
    Elements expected;
    for (Rank rank = 0; rank < size; ++rank) {
      const Elements& sent = group.members[at(rank)].send;
      expected.insert(expected.end(), sent.begin(), sent.begin() + static_cast<ptrdiff_t>(counts[at(rank)]));
    }
    for (const Member& member : group.members) CHECK(member.recv == expected);
  }
}

TEST("an average counts as often as its host has ranks") {
  float of_three = 2, of_one = 6, result = 0;
  const Run output{0, reinterpret_cast<std::byte*>(&result), sizeof(result)};
  const DType float32{2, 32, 1};
  hosts::HostFold fold({Op::reduce, Memory::host, float32, 1, 0, Fold::avg}, {&output, 1},
                       {{3, {reinterpret_cast<std::byte*>(&of_three)}}, {1, {reinterpret_cast<std::byte*>(&of_one)}}});
  CHECK(fold.step());
  CHECK_EQ(result, 3.0f);
}

TEST("memory serves again when the operation is over") {
  hosts::Scratch scratch;
  auto first = scratch.take(100);
  const std::byte* const where = first.get();
  const auto second = scratch.take(50);
  CHECK(second.get() != where);
  first.reset();
  auto third = scratch.take(200);
  const std::byte* const there = third.get();
  third.reset();
  CHECK(scratch.take(200).get() == there);
}
