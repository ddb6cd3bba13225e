// Plans are pure, so the test makes those of all ranks in one process. It checks that every element is folded once and
// in the documented order, and counts bytes and messages between hosts.
#include "core/stages/arrange.h"

#include <numeric>

#include "core/plans_of_group.h"
#include "core/random_topology.h"
#include "core/stages/choose.h"
#include "core/stages/ring.h"

namespace {

using namespace a2a;
using namespace a2a::check_plans;
using check::Random;

constexpr DType kInt32{0, 32, 1};
using Counts = std::vector<int64_t>;

Counts random_counts(Random& random, int size, int64_t most) {
  Counts counts;
  for (int i = 0; i < size; ++i) counts.push_back(random.chance(0.2) ? 0 : random.in(int64_t{0}, most));
  return counts;
}

size_t total(const Counts& counts) {
  return static_cast<size_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
}

Element element(Rank rank, size_t index) { return std::to_string(rank) + "." + std::to_string(index); }

// Returns what each host makes of an element, by host: the fold of its ranks for which `counts` holds.
template <class Counts>
std::vector<Elements> of_hosts(const Topology& topology, size_t index, const Counts& counts) {
  std::vector<Elements> hosts;
  for (const auto& ranks : topology.ranks) {
    std::vector<Elements> parts;
    for (const Rank rank : ranks) {
      if (counts(rank)) parts.push_back({element(rank, index)});
    }
    if (!parts.empty()) hosts.push_back(folded(parts));
  }
  return hosts;
}

constexpr auto kAll = [](Rank) { return true; };

// The documented fold: the ranks of each host in rank order, then the hosts in their order.
Element host_by_host(const Topology& topology, size_t index) { return folded(of_hosts(topology, index, kAll))[0]; }

struct Group {
  explicit Group(Random& random) : topology(random_topology(random)), members(at(topology.size())) {}

  // Arranges the plans of all ranks, and runs them over tensors of so many elements.
  template <class Make>
  Traffic run(const Make& plan, Op op, size_t sent, size_t received) {
    Call call;
    call.op = op;
    call.dtype = kInt32;
    std::vector<Plan> plans;
    for (Rank rank = 0; rank < topology.size(); ++rank) {
      Member& member = members[at(rank)];
      member.send.clear();
      for (size_t i = 0; i < sent; ++i) member.send.push_back(element(rank, i));
      member.recv.assign(received, "old");
      const Plan flat = plan(rank);
      plans.push_back(arrange(flat, call, topology).value_or(flat));
      CHECK_EQ(plans.back().stages().size(), plans[0].stages().size());
      CHECK_EQ(plans.back().agreement(), plans[0].agreement());
    }
    arranged = plans[0].stages().size() > 1;
    CHECK(!arranged || plans[0].agreement() != 0);
    return check_plans::run(plans, members, topology);
  }

  size_t others() const { return at(topology.hosts()) - 1; }

  Topology topology;
  std::vector<Member> members;
  bool arranged = false;
};

}  // namespace

TEST("reduce_scatter: each element is folded once, host by host, and many come once from each host") {
  Random random(check::seed());
  int arranged = 0;
  for (int round = 0; round < 60; ++round) {
    const check::Note note("round", static_cast<uint64_t>(round));
    Group group(random);
    const int size = group.topology.size();
    const Counts counts = random_counts(random, size, random.chance(0.5) ? 100 : 20'000);
    const Traffic traffic = group.run([&](Rank rank) { return Plan::reduce_scatter(rank, size, kElem, counts); },
                                      Op::reduce_scatter, total(counts), 20'000);
    if (group.arranged) {
      ++arranged;
      CHECK_EQ(traffic.bytes_between_hosts, total(counts) * kElem * group.others());
    }
    size_t begin = 0;
    for (Rank rank = 0; rank < size; ++rank) {
      const auto count = static_cast<size_t>(counts[at(rank)]);
      const Elements& recv = group.members[at(rank)].recv;
      for (size_t i = 0; i < count; i += 1 + count / 50) {
        CHECK_EQ(recv[i], host_by_host(group.topology, begin + i));
      }
      CHECK(std::all_of(recv.begin() + static_cast<ptrdiff_t>(count), recv.end(), [](auto& x) { return x == "old"; }));
      begin += count;
    }
  }
  CHECK(arranged > 5 && arranged < 55);
}

TEST("allreduce: in one stage each pair exchanges all, in parts each host sends all twice to each other") {
  Random random(check::seed());
  for (int round = 0; round < 40; ++round) {
    const check::Note note("round", static_cast<uint64_t>(round));
    Group group(random);
    const int size = group.topology.size();
    const size_t elems = random.in(size_t{1}, random.chance(0.5) ? size_t{40} : size_t{9'000});
    for (const bool in_parts : {false, true}) {
      const Traffic traffic = group.run([&](Rank rank) { return Plan::allreduce(rank, size, kElem, elems, in_parts); },
                                        Op::allreduce, elems, elems);
      CHECK_EQ(traffic.stages, in_parts ? 4u : 1u);
      size_t pairs = 0;
      for (const auto& ranks : group.topology.ranks) pairs += ranks.size() * (at(size) - ranks.size());
      CHECK_EQ(traffic.bytes_between_hosts, elems * kElem * (in_parts ? 2 * group.others() : pairs));
      for (const Member& member : group.members) {
        for (size_t i = 0; i < elems; i += 1 + elems / 50) CHECK_EQ(member.recv[i], host_by_host(group.topology, i));
      }
    }
  }
}

TEST("reduce: only the root gets the fold") {
  Random random(check::seed());
  for (int round = 0; round < 40; ++round) {
    const check::Note note("round", static_cast<uint64_t>(round));
    Group group(random);
    const int size = group.topology.size();
    const size_t elems = random.in(size_t{1}, size_t{30'000});
    const Rank root = random.in(0, size - 1);
    group.run([&](Rank rank) { return Plan::reduce(rank, size, root, elems * kElem); }, Op::reduce, elems, elems);
    for (Rank rank = 0; rank < size; ++rank) {
      for (size_t i = 0; i < elems; i += 1 + elems / 50) {
        CHECK_EQ(group.members[at(rank)].recv[i], rank == root ? host_by_host(group.topology, i) : "old");
      }
    }
  }
}

TEST("many bytes of a rooted operation cross the link of the root's host once") {
  Random random(check::seed());
  for (int round = 0; round < 20; ++round) {
    const check::Note note("round", static_cast<uint64_t>(round));
    Group group(random);
    if (group.topology.hosts() < 3) continue;
    const int size = group.topology.size();
    const size_t elems = random.in(size_t{70'000}, size_t{80'000}), bytes = elems * kElem;
    const Rank root = random.in(0, size - 1);
    const auto home = at(group.topology.host_of(root));
    Traffic traffic =
        group.run([&](Rank rank) { return Plan::broadcast(rank, size, root, bytes); }, Op::broadcast, elems, elems);
    CHECK_EQ(traffic.stages, 3);
    CHECK_EQ(traffic.sent_by_host[home], bytes);
    CHECK_EQ(traffic.received_by_host[home], 0);
    for (size_t host = 0; host < at(group.topology.hosts()); ++host) {
      CHECK_EQ(traffic.received_by_host[host], host == home ? 0 : bytes);
    }
    for (Rank rank = 0; rank < size; ++rank) {
      CHECK(rank == root || group.members[at(rank)].recv == group.members[at(root)].send);
    }
    traffic = group.run([&](Rank rank) { return Plan::reduce(rank, size, root, bytes); }, Op::reduce, elems, elems);
    CHECK_EQ(traffic.stages, 3);
    CHECK(traffic.received_by_host[home] < 2 * bytes);
    for (size_t i = 0; i < elems; i += 997) {
      CHECK_EQ(group.members[at(root)].recv[i], host_by_host(group.topology, i));
    }
  }
}

TEST("in a ring each host only sends to the next one, and part p is folded from host p on") {
  Random random(check::seed());
  for (const int hosts : {8, 9}) {
    std::vector<int> names;
    for (int host = 0; host < hosts; ++host) names.push_back(host);
    for (int more = 0; more < 5; ++more) names.push_back(random.in(0, hosts - 1));
    Group group(random);
    group.topology = Topology(names);
    group.members.resize(names.size());
    const int size = group.topology.size();
    const size_t elems = at(hosts) * (size_t{256} << 10) + 3, bytes = elems * kElem;
    std::vector<Plan> plans;
    Call call;
    call.op = Op::allreduce;
    call.dtype = kInt32;
    for (Rank rank = 0; rank < size; ++rank) {
      plans.push_back(*arrange(Plan::allreduce(rank, size, kElem, elems, true), call, group.topology));
    }
    for (const Plan& plan : plans) {
      CHECK_EQ(plan.stages().size(), 2 * at(hosts));
      for (const Stage& stage : plan.stages()) {
        for (const Segment& s : stage.sends) {
          const int here = group.topology.host_of(plan.rank()), there = group.topology.host_of(s.peer);
          CHECK(there == here || there == (here + 1) % hosts);
        }
      }
    }
  }
  // Few elements take the same way through the function itself.
  const Topology topology({0, 1, 2, 0, 1});
  const size_t elems = 100;
  std::vector<Member> members(5);
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < 5; ++rank) {
    for (size_t i = 0; i < elems; ++i) members[at(rank)].send.push_back(element(rank, i));
    members[at(rank)].recv.assign(elems, "old");
    std::vector<Stage> stages;
    const Segment all{rank, 0, 0, elems * kElem};
    const size_t scratch = append_ring(stages, rank, all, all, topology, kElem);
    plans.push_back(Plan::allreduce(rank, 5, kElem, elems, true).with_stages(stages, scratch, 0));
  }
  const Traffic traffic = check_plans::run(plans, members, topology);
  CHECK_EQ(traffic.bytes_between_hosts, 2 * 2 * elems * kElem);
  CHECK_EQ(traffic.messages_between_hosts, 4 * 3 * 1);  // the smallest host has one rank
  for (size_t i = 0; i < elems; ++i) {
    const size_t part = i / 34;
    const auto hosts = of_hosts(topology, i, kAll);
    const Elements first = folded({hosts[part], hosts[(part + 1) % 3]});
    for (const Member& member : members) CHECK_EQ(member.recv[i], folded({first, hosts[(part + 2) % 3]})[0]);
  }
}

TEST("the table of a group: each collective has a first line, and later lines begin at more bytes") {
  const Topology topology({0, 0, 1, 1, 2, 2});
  const auto choices = choices_between(topology);
  for (size_t i = 0; i < choices.size(); ++i) {
    const bool first = i == 0 || choices[i].collective != choices[i - 1].collective;
    CHECK(first ? choices[i].from == 0 : choices[i].from > choices[i - 1].from);
    CHECK(!choices[i].reason.empty());
  }
  CHECK_EQ(choices.size(), 13);
  CHECK_EQ(choices_within(4, 1000)[1].from, 1001);
  CHECK_EQ(choices_within(1, 1000).size(), 1);
  CHECK_THROWS(Code::invalid_argument, "at least 2", stage_choices({5, 5}));
}

TEST("scan: a rank folds the ranks below it, host by host") {
  Random random(check::seed());
  for (int round = 0; round < 40; ++round) {
    Group group(random);
    const int size = group.topology.size();
    const bool exclusive = random.chance(0.5);
    group.run([&](Rank rank) { return Plan::scan(rank, size, kElem, 3, exclusive); }, exclusive ? Op::exscan : Op::scan,
              3, 3);
    for (Rank rank = 0; rank < size; ++rank) {
      const auto below = [&](Rank other) { return other < rank || (other == rank && !exclusive); };
      const auto hosts = of_hosts(group.topology, 1, below);
      CHECK_EQ(group.members[at(rank)].recv[1], hosts.empty() ? "old" : folded(hosts)[0]);
    }
  }
}

TEST("what goes to all comes once to each host") {
  Random random(check::seed());
  int arranged = 0;
  for (int round = 0; round < 60; ++round) {
    const check::Note note("round", static_cast<uint64_t>(round));
    Group group(random);
    const int size = group.topology.size();
    const Counts counts = random_counts(random, size, 15'000);
    const Rank root = random.in(0, size - 1);
    const size_t all = total(counts), elems = random.in(size_t{0}, size_t{30'000});
    Traffic traffic = group.run([&](Rank rank) { return Plan::broadcast(rank, size, root, elems * kElem); },
                                Op::broadcast, elems, elems);
    if (group.arranged) {
      ++arranged;
      CHECK_EQ(traffic.bytes_between_hosts, elems * kElem * group.others());
    }
    for (Rank rank = 0; rank < size; ++rank) {
      CHECK(rank == root || group.members[at(rank)].recv == group.members[at(root)].send);
    }
    const auto gather = [&](Rank rank) {
      const Counts sent(at(size), counts[at(rank)]), nowhere(at(size), 0);
      return Plan::alltoallv(rank, size, kElem, {sent, nowhere}, 15'000, {counts, {}}, all);
    };
    traffic = group.run(gather, Op::allgatherv, 15'000, all);
    if (group.arranged) CHECK_EQ(traffic.bytes_between_hosts, all * kElem * group.others());
    Elements expected;
    for (Rank rank = 0; rank < size; ++rank) {
      const Elements& sent = group.members[at(rank)].send;
      expected.insert(expected.end(), sent.begin(), sent.begin() + static_cast<ptrdiff_t>(counts[at(rank)]));
    }
    for (const Member& member : group.members) CHECK(member.recv == expected);
  }
  CHECK(arranged > 5 && arranged < 55);
}

TEST("plans that only copy between single ranks are left as they are") {
  const Topology topology({0, 0, 1, 1});
  Call call;
  call.op = Op::alltoallv;
  const Counts sent = {1, 2, 3, 4}, received = {2, 2, 2, 2};
  CHECK(!arrange(Plan::alltoallv(1, 4, 1, {sent}, 10, {received}, 8), call, topology));
}
