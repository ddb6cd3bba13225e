#include "a2a/sharding.h"

#include <algorithm>
#include <vector>

#include "check.h"
#include "core/sharding/boxes.h"
#include "core/sharding/parts.h"

namespace {

using namespace a2a;
using check::Note;
using check::Random;
using Shape = std::vector<int64_t>;

Box box(Shape begin, Shape end) { return {std::move(begin), std::move(end)}; }

TEST("parts are those of torch.chunk: ceil(n / m) entries, the last ones fewer or none") {
  const Sharding four = Sharding::mesh({4}, {3, 1, 0, 2}, {Placement::shard(-1)});
  const auto part = [&](Rank rank, int64_t entries) { return *four.box(rank, Shape{2, entries}); };
  CHECK(part(3, 10) == box({0, 0}, {2, 3}));
  CHECK(part(0, 10) == box({0, 6}, {2, 9}));
  CHECK(part(2, 10) == box({0, 9}, {2, 10}));
  CHECK(part(0, 5) == box({0, 4}, {2, 5}));
  CHECK(part(2, 5) == box({0, 5}, {2, 5}));
  CHECK(part(3, 0) == box({0, 0}, {2, 0}));
  CHECK(!four.box(4, Shape{2, 5}) && !four.box(-1, Shape{2, 5}));
}

TEST("several axes of a mesh divide one dimension in their order") {
  const Sharding sharding = Sharding::mesh({2, 2}, {0, 1, 2, 3}, {Placement::shard(0), Placement::shard(0)});
  CHECK(*sharding.box(0, Shape{7}) == box({0}, {2}));
  CHECK(*sharding.box(1, Shape{7}) == box({2}, {4}));
  CHECK(*sharding.box(2, Shape{7}) == box({4}, {6}));
  CHECK(*sharding.box(3, Shape{7}) == box({6}, {7}));
}

TEST("a tensor without dimensions is replicated") {
  const Sharding sharding = Sharding::mesh({2}, {0, 1}, {Placement::replicate()});
  CHECK(*sharding.box(1, Shape{}) == box({}, {}));
  CHECK_EQ(sharding.box(1, Shape{})->elems(), 1);
  CHECK_THROWS(Code::invalid_argument, "dimension 0 of a tensor of 0 dimensions",
               Sharding::mesh({1}, {0}, {Placement::shard(0)}).box(0, Shape{}));
}

TEST("an axis of one rank folds nothing") {
  CHECK(Sharding::mesh({1, 2}, {0, 1}, {Placement::partial(), Placement::replicate()}).fold() == Fold::none);
  CHECK(Sharding::mesh({2, 1}, {0, 1}, {Placement::partial(Fold::max), Placement::replicate()}).fold() == Fold::max);
}

bool holds(const Box& of, const Shape& entry) {
  for (size_t i = 0; i < entry.size(); ++i) {
    if (entry[i] < of.begin[i] || entry[i] >= of.end[i]) return false;
  }
  return true;
}

Box random_box(Random& random) {
  Box made = box({0, 0}, {0, 0});
  for (size_t i = 0; i < 2; ++i) {
    made.begin[i] = random.in(0, 6);
    made.end[i] = random.in(made.begin[i], int64_t{6});
  }
  return made;
}

TEST("a box without a hole, and disjoint cells of boxes that overlap, have each entry once") {
  for (uint64_t i = 0; i < 2000; ++i) {
    const Note note("case", i);
    Random random(check::seed() + i);
    const Box outer = random_box(random), hole = random_box(random);
    const auto rest = sharding::without(outer, hole);
    std::vector<std::optional<Box>> boxes;
    for (int rank = random.in(1, 5); rank > 0; --rank) boxes.push_back(random_box(random));
    boxes.push_back(box({0, 0}, {6, 6}));
    const Sharding sharding = Sharding::boxes(boxes);
    const Shape shape{6, 6};
    const auto cells = Parts("src", sharding, shape, static_cast<int>(boxes.size())).cells();
    for (int64_t row = 0; row < 6; ++row) {
      for (int64_t column = 0; column < 6; ++column) {
        const Shape entry{row, column};
        const auto has = [&](const Box& part) { return holds(part, entry); };
        if (!sharding::is_empty(outer)) {
          CHECK_EQ(std::ranges::count_if(rest, has), holds(outer, entry) && !holds(hole, entry) ? 1 : 0);
        }
        const auto found = std::ranges::find_if(cells, [&](const auto& cell) { return has(cell.box); });
        CHECK_EQ(std::ranges::count_if(cells, [&](const auto& cell) { return has(cell.box); }), 1);
        for (size_t rank = 0; rank < boxes.size(); ++rank) {
          const std::vector<Rank> copy{static_cast<Rank>(rank)};
          CHECK_EQ(std::ranges::count(found->copies, copy), has(*boxes[rank]) ? 1 : 0);
        }
      }
    }
  }
}

TEST("copies of partial sums are folded in one order, or left out") {
  const auto copies = [](std::vector<Rank> ranks) {
    const Sharding sharding = Sharding::mesh({2, 3}, ranks, {Placement::replicate(), Placement::partial()});
    const Shape shape{4};
    return Parts("src", sharding, shape, 6).cells()[0].copies;
  };
  using Copies = std::vector<std::vector<Rank>>;
  CHECK(copies({0, 1, 2, 3, 4, 5}) == Copies{{0, 1, 2}, {3, 4, 5}});
  CHECK(copies({0, 2, 1, 3, 5, 4}) == Copies{{0, 1, 2}, {3, 4, 5}});
  CHECK(copies({0, 1, 2, 5, 4, 3}) == Copies{{0, 1, 2}});
}

}  // namespace
