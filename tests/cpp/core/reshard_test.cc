// Reshardings are pure, so the test makes the plans of all ranks in one process, runs them stage by stage with elements
// that remember how they came to be, and compares the result with what each rank should have.
#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "a2a/sharding.h"
#include "check.h"
#include "core/random_topology.h"
#include "core/sharding/boxes.h"
#include "core/sharding/parts.h"

namespace {

using namespace a2a;
using check::Note;
using check::Random;
using Shape = std::vector<int64_t>;
using Elements = std::vector<std::string>;  // of a local tensor, in C order; "": not received

constexpr DType kSmall{2, 32, 1};
constexpr DType kLarge{1, 8, 16384};  // an element is worth a message of its own

size_t at(int64_t i) { return static_cast<size_t>(i); }

// Calls visit(global index, index in the local tensor) for each element of a box.
template <class Visit>
void each_element(const Box& box, const Box& local, const Shape& shape, Visit&& visit) {
  if (sharding::is_empty(box)) return;
  Shape entry = box.begin;
  while (true) {
    int64_t whole = 0, here = 0;
    for (size_t i = 0; i < shape.size(); ++i) {
      whole = whole * shape[i] + entry[i];
      here = here * (local.end[i] - local.begin[i]) + entry[i] - local.begin[i];
    }
    visit(whole, at(here));
    size_t i = shape.size();
    while (i > 0 && ++entry[i - 1] == box.end[i - 1]) entry[i - 1] = box.begin[i - 1], --i;
    if (i == 0) return;
  }
}

Box shifted(const Box& inner, const Box& local) {
  Box box = inner;
  for (size_t i = 0; i < box.begin.size(); ++i) box.begin[i] += local.begin[i], box.end[i] += local.begin[i];
  return box;
}

std::vector<Rank> some_ranks(Random& random, int size, int count) {
  std::vector<Rank> ranks(at(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::ranges::shuffle(ranks, random);
  ranks.resize(at(count));
  return ranks;
}

Sharding random_mesh(Random& random, int size, size_t dims, bool partial) {
  std::vector<int64_t> mesh;
  int64_t count = 1;
  for (int axis = random.in(1, 3); axis > 0; --axis) {
    mesh.push_back(random.in(int64_t{1}, std::max<int64_t>(1, size / count)));
    count *= mesh.back();
  }
  std::vector<Placement> placements;
  for (size_t axis = 0; axis < mesh.size(); ++axis) {
    const int kind = random.in(0, partial ? 2 : 1);
    placements.push_back(kind == 2 ? Placement::partial()
                         : kind == 1 && dims > 0
                             ? Placement::shard(random.in(-static_cast<int>(dims), static_cast<int>(dims) - 1))
                             : Placement::replicate());
  }
  return Sharding::mesh(mesh, some_ranks(random, size, static_cast<int>(count)), placements);
}

Box random_box(Random& random, const Shape& shape) {
  Box box = sharding::whole(shape);
  for (size_t i = 0; i < shape.size(); ++i) {
    box.begin[i] = random.in(int64_t{0}, shape[i]);
    box.end[i] = random.in(box.begin[i], shape[i]);
  }
  return box;
}

// Boxes that may overlap. A source has all elements.
Sharding random_boxes(Random& random, int size, const Shape& shape, bool is_source) {
  std::vector<std::optional<Box>> boxes(at(size));
  for (auto& box : boxes) {
    if (random.chance(0.7)) box = random_box(random, shape);
  }
  if (is_source) boxes[at(random.in(0, size - 1))] = sharding::whole(shape);
  return Sharding::boxes(boxes);
}

Resharding random_tensor(Random& random, int size, bool partial) {
  Shape shape(at(random.in(0, 3)));
  for (int64_t& entries : shape) entries = random.chance(0.05) ? 0 : random.in(1, 9);
  const bool boxes = random.chance(0.2);
  return {
      shape, boxes ? random_boxes(random, size, shape, true) : random_mesh(random, size, shape.size(), partial),
      random.chance(0.2) ? random_boxes(random, size, shape, false) : random_mesh(random, size, shape.size(), false),
      random.chance(0.5) ? kLarge : kSmall};
}

// All ranks' local tensors: [rank][tensor].
struct World {
  std::vector<Resharding> tensors;
  Topology topology;
  std::vector<Reshard> plans;
  std::vector<std::vector<Elements>> send, recv;
  std::map<std::tuple<Rank, Rank>, size_t> sent;  // bytes

  World(std::vector<Resharding> of, const Topology& on, bool all_know_dtypes = true)
      : tensors(std::move(of)), topology(on) {
    for (Rank rank = 0; rank < topology.size(); ++rank) {
      plans.push_back(Reshard::make(rank, topology.size(), tensors, topology.host, all_know_dtypes));
      auto& before = send.emplace_back(tensors.size());
      auto& after = recv.emplace_back(tensors.size());
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (const auto& box = plans.back().src(i)) {
          before[i].resize(at(box->elems()));
          const std::string owner = tensors[i].src.fold() != Fold::none ? "@" + std::to_string(rank) : "";
          each_element(*box, *box, tensors[i].shape,
                       [&](int64_t whole, size_t here) { before[i][here] = std::to_string(whole) + owner; });
        }
        if (const auto& box = plans.back().dst(i)) after[i].resize(at(box->elems()));
      }
    }
  }

  void run() {
    for (size_t part = 0; part < plans[0].parts().size(); ++part) {
      const size_t stages = plans[0].parts()[part].plan.stages().size();
      for (const Reshard& plan : plans) {
        CHECK_EQ(plan.parts().size(), plans[0].parts().size());
        if (!CHECK_EQ(plan.parts()[part].plan.stages().size(), stages)) return;
        CHECK_EQ(plan.parts()[part].plan.agreement(), plans[0].parts()[part].plan.agreement());
      }
      for (size_t stage = 0; stage < stages; ++stage) run(part, stage);
    }
  }

 private:
  struct Arrived {
    Rank from;
    Elements elements;
    size_t tensor;
    Box box;
    uint32_t label;
  };

  void run(size_t part, size_t stage) {
    std::vector<std::vector<Arrived>> arrived(plans.size());
    for (Rank from = 0; from < topology.size(); ++from) {
      for (Rank to = 0; to < topology.size(); ++to) exchange(part, stage, from, to, arrived[at(to)]);
    }
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      std::map<std::pair<size_t, std::vector<int64_t>>, uint32_t> labels;
      for (const Arrived& one : arrived[rank]) put(rank, one);
    }
  }

  void exchange(size_t part, size_t stage, Rank from, Rank to, std::vector<Arrived>& arrived) {
    const Reshard::Part &sender = plans[at(from)].parts()[part], &receiver = plans[at(to)].parts()[part];
    const Stage &out = sender.plan.stages()[stage], &in = receiver.plan.stages()[stage];
    CHECK_EQ(out.reach == Reach::host, in.reach == Reach::host);
    std::vector<Segment> sends, recvs;
    for (const Segment& s : out.sends) {
      if (s.peer == to) sends.push_back(s);
    }
    for (const Segment& s : in.recvs) {
      if (s.peer == from) recvs.push_back(s);
    }
    if (!CHECK_EQ(sends.size(), recvs.size())) return;
    if (!sends.empty() && out.reach == Reach::host) CHECK(topology.share_host(from, to));
    if (in.sink == Sink::fold) CHECK(std::ranges::is_sorted(recvs, {}, &Segment::label));
    for (size_t k = 0; k < sends.size(); ++k) {
      CHECK_EQ(sends[k].bytes, recvs[k].bytes);
      const bool passes = sends[k].space == Space::received;
      const auto& [tensor, box] = passes ? sender.recvs[at(sends[k].buffer)] : sender.sends[at(sends[k].buffer)];
      const auto& [target, place] = receiver.recvs[at(recvs[k].buffer)];
      CHECK_EQ(tensor, target);
      CHECK_EQ(sends[k].bytes, at(box.elems()) * tensors[tensor].dtype.bytes());
      const Box local = passes ? *plans[at(from)].dst(tensor) : *plans[at(from)].src(tensor);
      const Box whole = shifted(box, local), there = shifted(place, *plans[at(to)].dst(tensor));
      CHECK(whole == there);
      Elements elements;
      each_element(whole, local, tensors[tensor].shape,
                   [&](int64_t, size_t here) { elements.push_back((passes ? recv : send)[at(from)][tensor][here]); });
      if (from != to) sent[{from, to}] += sends[k].bytes;
      arrived.push_back({from, std::move(elements), tensor, there, recvs[k].label});
    }
  }

  // Those of one label come in rank order.
  void put(size_t rank, const Arrived& one) {
    size_t next = 0;
    each_element(one.box, *plans[rank].dst(one.tensor), tensors[one.tensor].shape, [&](int64_t, size_t here) {
      std::string& element = recv[rank][one.tensor][here];
      if (one.label == 0) CHECK_EQ(element, "");
      element += (element.empty() ? "" : "+") + one.elements[next++];
    });
  }
};

// What an element of the destination is.
std::string expected(const Resharding& tensor, int size, int64_t whole, const std::string& found) {
  if (tensor.src.fold() == Fold::none) return std::to_string(whole);
  // The terms of one copy, in rank order.
  const Parts src("src", tensor.src, tensor.shape, size);
  std::set<std::string> possible;
  for (const Parts::Cell& cell : src.cells()) {
    bool has = false;
    each_element(cell.box, cell.box, tensor.shape, [&](int64_t element, size_t) { has |= element == whole; });
    for (const auto& copy : has ? cell.copies : std::vector<std::vector<Rank>>()) {
      std::string sum;
      for (const Rank rank : copy) sum += (sum.empty() ? "" : "+") + std::to_string(whole) + "@" + std::to_string(rank);
      possible.insert(sum);
    }
  }
  return possible.contains(found) ? found : *possible.begin();
}

void check_result(const World& world) {
  for (size_t rank = 0; rank < world.plans.size(); ++rank) {
    for (size_t i = 0; i < world.tensors.size(); ++i) {
      const auto& box = world.plans[rank].dst(i);
      if (!box) continue;
      each_element(*box, *box, world.tensors[i].shape, [&](int64_t whole, size_t here) {
        const std::string& found = world.recv[rank][i][here];
        CHECK_EQ(found, expected(world.tensors[i], world.topology.size(), whole, found));
      });
    }
  }
}

// Each rank receives what it lacks, once; and each host once what several of its ranks want and none has.
void check_bytes(const World& world) {
  std::vector<size_t> lacks(world.plans.size()), received(world.plans.size());
  for (size_t i = 0; i < world.tensors.size(); ++i) {
    const Shape& shape = world.tensors[i].shape;
    for (size_t rank = 0; rank < world.plans.size(); ++rank) {
      const auto &src = world.plans[rank].src(i), &dst = world.plans[rank].dst(i);
      if (!dst) continue;
      const size_t elem_bytes = world.tensors[i].dtype.bytes();
      lacks[rank] += at(dst->elems()) * elem_bytes;
      if (src && sharding::meet(*src, *dst) && !sharding::is_empty(*dst)) {
        lacks[rank] -= at(sharding::common(*src, *dst).elems()) * elem_bytes;
      }
    }
    (void)shape;
  }
  for (const auto& [pair, bytes] : world.sent) received[at(std::get<1>(pair))] += bytes;
  CHECK_EQ(received, lacks);
}

TEST("every rank gets its part of the destination, and each byte that it lacks once") {
  for (uint64_t i = 0; i < 1500; ++i) {
    const Note note("case", i);
    Random random(check::seed() + i);
    const int size = random.in(1, 9);
    const Topology topology =
        size > 1 && random.chance(0.5) ? check_plans::random_topology(random) : Topology(std::vector<int>(at(size)));
    std::vector<Resharding> tensors;
    for (int k = random.in(1, 3); k > 0; --k) tensors.push_back(random_tensor(random, topology.size(), false));
    World world(tensors, topology);
    world.run();
    check_result(world);
    check_bytes(world);
  }
}

TEST("partial sums are folded in rank order, beside tensors that are copied") {
  for (uint64_t i = 0; i < 1000; ++i) {
    const Note note("case", i);
    Random random(check::seed() + i);
    const Topology topology =
        random.chance(0.3) ? check_plans::random_topology(random) : Topology(std::vector<int>(at(random.in(1, 8))));
    std::vector<Resharding> tensors;
    for (int k = random.in(1, 4); k > 0; --k) {
      tensors.push_back(random_tensor(random, topology.size(), random.chance(0.7)));
      if (tensors.back().src.fold() != Fold::none) tensors.back().dtype = kSmall;
    }
    World world(tensors, topology);
    world.run();
    check_result(world);
  }
}

std::map<Rank, size_t> sent_by(const World& world) {
  std::map<Rank, size_t> bytes;
  for (const auto& [pair, count] : world.sent) bytes[std::get<0>(pair)] += count;
  return bytes;
}

Sharding replicas(std::vector<Rank> ranks) {
  const auto count = static_cast<int64_t>(ranks.size());
  return Sharding::mesh({count}, std::move(ranks), {Placement::replicate()});
}

TEST("nothing is passed on where a rank without a part may not know the dtype") {
  for (uint64_t i = 0; i < 500; ++i) {
    const Note note("case", i);
    Random random(check::seed() + i);
    const Topology topology = check_plans::random_topology(random);
    Resharding tensor = random_tensor(random, topology.size(), random.chance(0.5));
    if (tensor.src.fold() != Fold::none) tensor.dtype = kSmall;
    World world({tensor}, topology, false);
    world.run();
    check_result(world);
    bool all_have_parts = true;
    for (const Reshard& plan : world.plans) {
      const auto has_part = [](const std::optional<Box>& box) { return box && !sharding::is_empty(*box); };
      all_have_parts &= has_part(plan.src(0)) || has_part(plan.dst(0));
    }
    if (!all_have_parts) CHECK_EQ(world.plans[0].stages(), size_t{1});
  }
}

TEST("ranks that have the same share the sending evenly") {
  for (const int wanting : {1, 2, 3, 5}) {
    std::vector<Rank> others;
    for (int i = 0; i < wanting; ++i) others.push_back(4 + i);
    World world({{{64, 3}, replicas({0, 1, 2, 3}), replicas(others), kLarge}}, Topology(std::vector<int>(9)));
    world.run();
    check_result(world);
    const size_t each = at(64 * 3 * wanting) * kLarge.bytes() / 4;
    for (const auto& [rank, bytes] : sent_by(world)) {
      CHECK(bytes + 3 * kLarge.bytes() * 2 >= each && bytes <= each + 3 * kLarge.bytes() * 2);
    }
    CHECK_EQ(sent_by(world).size(), size_t{4});
  }
}

TEST("tensors too small to be cut are sent by one rank after the other") {
  std::vector<Resharding> tensors;
  for (int i = 0; i < 8; ++i) tensors.push_back({{2}, replicas({0, 1, 2, 3}), replicas({4}), kSmall});
  World world(tensors, Topology(std::vector<int>(5)));
  world.run();
  check_result(world);
  const auto sent = sent_by(world);
  CHECK_EQ(sent.size(), size_t{4});
  for (const auto& [rank, bytes] : sent) CHECK_EQ(bytes, size_t{16});
}

TEST("a rank of the same host sends, and a host without one gets each byte once") {
  const Topology topology({0, 0, 1, 1, 2, 2, 2});
  World world({{{30, 2}, replicas({0, 2}), replicas({1, 3, 4, 5, 6}), kLarge}}, topology);
  world.run();
  check_result(world);
  const size_t whole = 60 * kLarge.bytes();
  CHECK_EQ((world.sent[{0, 1}]), whole);
  CHECK_EQ((world.sent[{2, 3}]), whole);
  size_t to_third = 0;
  for (const auto& [pair, bytes] : world.sent) {
    const auto [from, to] = pair;
    if (topology.host_of(to) == 2 && topology.host_of(from) != 2) to_third += bytes;
    if (topology.host_of(from) != topology.host_of(to)) CHECK_EQ(topology.host_of(to), 2);
  }
  CHECK_EQ(to_third, whole);
}

TEST("what does not fit is refused by name") {
  const Sharding halves = Sharding::mesh({2}, {0, 1}, {Placement::shard(0)});
  const auto make = [&](Shape shape, const Sharding& src, const Sharding& dst, DType dtype = kSmall) {
    const Resharding tensor{std::move(shape), src, dst, dtype};
    return Reshard::make(0, 4, {&tensor, 1});
  };
  CHECK_THROWS(Code::invalid_argument, "names rank 1 twice",
               Sharding::mesh({2, 2}, {0, 1, 1, 2}, {Placement::replicate(), Placement::replicate()}));
  CHECK_THROWS(Code::invalid_argument, "names rank -1", Sharding::mesh({1}, {-1}, {Placement::replicate()}));
  CHECK_THROWS(Code::invalid_argument, "has 2 ranks", Sharding::mesh({3}, {0, 1}, {Placement::replicate()}));
  CHECK_THROWS(Code::invalid_argument, "shape (0,)", Sharding::mesh({0}, {}, {Placement::replicate()}));
  CHECK_THROWS(Code::invalid_argument, "2 placements for 1 axes",
               Sharding::mesh({1}, {0}, {Placement::replicate(), Placement::replicate()}));
  CHECK_THROWS(Code::invalid_argument, "one and the same operation",
               Sharding::mesh({1, 1}, {0}, {Placement::partial(Fold::sum), Placement::partial(Fold::max)}));
  CHECK_THROWS(Code::invalid_argument, "src: it names rank 7", make({4}, replicas({0, 7}), halves));
  CHECK_THROWS(Code::invalid_argument, "dst: it divides dimension 1",
               make({4}, halves, Sharding::mesh({1}, {0}, {Placement::shard(1)})));
  CHECK_THROWS(Code::invalid_argument, "dst: the parts of a destination cannot be partial",
               make({4}, halves, Sharding::mesh({2}, {0, 1}, {Placement::partial()})));
  CHECK_THROWS(Code::invalid_argument, "src: it has 3 of the 4 elements",
               make({4}, Sharding::boxes({Box{{0}, {2}}, Box{{3}, {4}}}), halves));
  CHECK_THROWS(Code::invalid_argument, "src: it has 3 of the 4 elements",
               make({4}, Sharding::boxes({Box{{0}, {2}}, Box{{1}, {3}}}), halves));
  CHECK_THROWS(Code::invalid_argument, "dst: the box of rank 1, from (2,) to (5,)",
               make({4}, halves, Sharding::boxes({std::nullopt, Box{{2}, {5}}})));
  CHECK_THROWS(Code::invalid_argument, "-1 entries", make({-1}, halves, halves));
  CHECK_THROWS(Code::invalid_argument, "overflows", make({int64_t{1} << 62}, halves, halves));
  CHECK_THROWS(Code::invalid_argument, "bfloat16",
               make({4}, Sharding::mesh({2}, {0, 1}, {Placement::partial(Fold::bxor)}), halves, {4, 16, 1}));
  CHECK_THROWS(Code::invalid_argument, "no rank 4", Reshard::make(4, 4, {}));
  const std::vector<int> hosts(3);
  CHECK_THROWS(Code::invalid_argument, "3 entries for 4 ranks", Reshard::make(0, 4, {}, hosts));
  const std::vector<Resharding> two{{{4}, halves, halves, kSmall}, {{4}, replicas({5}), halves, kSmall}};
  CHECK_THROWS(Code::invalid_argument, "tensors[1]: src: ", Reshard::make(0, 4, two));
}

TEST("ranks with other shapes, shardings or dtypes have another agreement") {
  const Sharding halves = Sharding::mesh({2}, {0, 1}, {Placement::shard(0)}), all = replicas({0, 1});
  const auto agreement = [](std::vector<Resharding> tensors) {
    return Reshard::make(0, 2, tensors).parts()[0].plan.agreement();
  };
  const auto one = agreement({{{4, 2}, halves, all, kSmall}});
  CHECK(one != 0);
  CHECK_EQ(one, agreement({{{4, 2}, halves, all, kSmall}}));
  CHECK_EQ(one, agreement({{{4, 2}, halves, all, kLarge}}));  // ranks compare the dtype of one tensor by itself
  CHECK(one != agreement({{{2, 4}, halves, all, kSmall}}));
  CHECK(one != agreement({{{4, 2}, all, all, kSmall}}));
  CHECK(one != agreement({{{4, 2}, halves, halves, kSmall}}));
  const Resharding small{{4, 2}, halves, all, kSmall}, large{{4, 2}, halves, all, kLarge};
  CHECK(agreement({small, large}) != agreement({small, small}));
  CHECK(agreement({small, large}) != agreement({large, small}));
}

}  // namespace
