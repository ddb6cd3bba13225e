// Expert parallelism: the plans of all ranks against loops over single tokens, and invalid messages of peers.
#include "a2a/experts.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "a2a/communicator.h"
#include "ranks.h"

namespace {

using namespace a2a;
using check::Random;

constexpr size_t kHidden = 5;

struct Group {
  std::shared_ptr<const ExpertPlacement> placement;
  int top_k = 0;
  std::vector<int64_t> tokens;
  std::vector<std::vector<int64_t>> experts;
  std::vector<std::vector<float>> weights;
};

Group random_group(Random& random, int size) {
  Group group;
  const int experts = random.in(1, 3 * size);
  std::vector<std::vector<Rank>> ranks(static_cast<size_t>(experts));
  for (auto& homes : ranks) {
    for (Rank rank = 0; rank < size; ++rank) {
      if (random.chance(0.3)) homes.push_back(rank);
    }
    if (homes.empty()) homes.push_back(random.in(0, size - 1));
  }
  group.placement = std::make_shared<const ExpertPlacement>(size, ranks);
  group.top_k = random.in(0, std::min(experts, 5));
  for (Rank rank = 0; rank < size; ++rank) {
    group.tokens.push_back(random.in(0, 12));
    auto& chosen = group.experts.emplace_back();
    auto& weights = group.weights.emplace_back();
    for (int64_t token = 0; token < group.tokens.back(); ++token) {
      std::vector<int64_t> all(static_cast<size_t>(experts));
      for (size_t e = 0; e < all.size(); ++e) all[e] = static_cast<int64_t>(e);
      for (size_t e = all.size(); e-- > 1;) std::swap(all[e], all[random.in(size_t{0}, e)]);
      for (int k = 0; k < group.top_k; ++k) {
        chosen.push_back(random.chance(0.2) ? -1 : all[static_cast<size_t>(k)]);
        weights.push_back(static_cast<float>(random.in(1, 100)));
      }
    }
  }
  return group;
}

std::vector<Routing> meet(const Group& group, RowOrder order, int64_t align) {
  const int size = group.placement->size();
  std::vector<Routing> made;
  for (Rank rank = 0; rank < size; ++rank) {
    const auto r = static_cast<size_t>(rank);
    made.emplace_back(group.placement, rank, Routing::Choices{group.experts[r], group.tokens[r], group.top_k}, order,
                      align);
  }
  for (Rank to = 0; to < size; ++to) {
    std::vector<int64_t> counts;
    std::vector<std::byte> messages;
    for (Rank from = 0; from < size; ++from) {
      const Routing& there = made[static_cast<size_t>(from)];
      counts.push_back(there.sent()[static_cast<size_t>(to)]);
      const size_t at = messages.size();
      messages.resize(at + there.told_bytes(to, true));
      there.tell(to, group.weights[static_cast<size_t>(from)], messages.data() + at);
    }
    made[static_cast<size_t>(to)].hear(counts, true, messages);
  }
  return made;
}

float token_value(Rank rank, int64_t token, size_t i) {
  return static_cast<float>(rank * 1000 + token * 10) + static_cast<float>(i);
}

// Runs every rank in a thread: rows arrive where sources() says, and come back as weighted sums.
TEST("tokens reach their experts and come back summed") {
  Random random(check::seed());
  for (int i = 0; i < 20; ++i) {
    const int size = random.in(1, 5);
    const auto order = random.chance(0.6) ? RowOrder::expert : RowOrder::rank;
    const int64_t align = order == RowOrder::expert ? random.in(1, 4) : 1;
    const Group group = random_group(random, size);
    const std::vector<Routing> routings = meet(group, order, align);
    ranks::as_threads(size, [&](Communicator& comm) {
      const auto rank = static_cast<size_t>(comm.rank());
      const Routing& routing = routings[rank];
      std::vector<float> x, rows(static_cast<size_t>(routing.rows()) * kHidden, -1.0f);
      for (int64_t token = 0; token < group.tokens[rank]; ++token) {
        for (size_t h = 0; h < kHidden; ++h) x.push_back(token_value(comm.rank(), token, h));
      }
      const size_t row_bytes = kHidden * sizeof(float);
      Call call;
      call.op = Op::dispatch, call.dtype = {2, 32, 1};
      const void* from = x.data();
      void* to = rows.data();
      comm.start(routing.dispatch({&row_bytes, 1}), {&from, 1}, {&to, 1}, call)->wait();

      std::vector<int64_t> sources(2 * static_cast<size_t>(routing.rows()));
      std::vector<float> weights(static_cast<size_t>(routing.rows()) *
                                 (order == RowOrder::expert ? 1 : static_cast<size_t>(group.top_k)));
      routing.sources(sources.data());
      routing.weights(weights.data());
      for (size_t row = 0; row < static_cast<size_t>(routing.rows()); ++row) {
        const auto source = static_cast<Rank>(sources[2 * row]);
        for (size_t h = 0; h < kHidden; ++h) {
          CHECK_EQ(rows[row * kHidden + h], source < 0 ? -1.0f : token_value(source, sources[2 * row + 1], h));
        }
      }

      std::vector<float> y(x.size(), -1.0f);
      call.op = Op::combine;
      call.weights = order == RowOrder::expert ? group.weights[rank].data() : nullptr;
      from = rows.data(), to = y.data();
      comm.start(routing.combine(row_bytes), {&from, 1}, {&to, 1}, call)->wait();
      for (int64_t token = 0; token < group.tokens[rank]; ++token) {
        float factor = 0;
        std::map<Rank, bool> ranks;
        for (int k = 0; k < group.top_k; ++k) {
          const auto at = static_cast<size_t>(token * group.top_k + k);
          if (group.experts[rank][at] < 0) continue;
          factor += order == RowOrder::expert ? group.weights[rank][at] : 0.0f;
        }
        if (order == RowOrder::rank) {
          for (const Routing& there : routings) {
            std::vector<int64_t> all(2 * static_cast<size_t>(there.rows()));
            there.sources(all.data());
            for (size_t row = 0; row < all.size(); row += 2) {
              if (all[row] == comm.rank() && all[row + 1] == token) factor += 1;
            }
          }
        }
        for (size_t h = 0; h < kHidden; ++h) {
          const auto at = static_cast<size_t>(token) * kHidden + h;
          CHECK(std::abs(y[at] - factor * token_value(comm.rank(), token, h)) <= 1e-3f * std::abs(y[at]));
        }
      }
      comm.close();
    });
  }
}

TEST("the routing messages of a peer are checked before use") {
  Random random(check::seed());
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    const Group group = random_group(random, 3);
    Routing routing(group.placement, 0, {group.experts[0], group.tokens[0], group.top_k},
                    random.chance(0.5) ? RowOrder::expert : RowOrder::rank, 1);
    std::vector<int64_t> counts;
    std::vector<std::byte> messages;
    for (Rank from = 0; from < 3; ++from) {
      const auto f = static_cast<size_t>(from);
      const Routing there(group.placement, from, {group.experts[f], group.tokens[f], group.top_k}, RowOrder::expert, 1);
      counts.push_back(there.sent()[0]);
      const size_t at = messages.size();
      messages.resize(at + there.told_bytes(0, false));
      there.tell(0, {}, messages.data() + at);
    }
    if (!messages.empty() && random.chance(0.7)) {
      messages[random.in(size_t{0}, messages.size() - 1)] = static_cast<std::byte>(random.in(0, 255));
    } else {
      counts[random.in(size_t{0}, size_t{2})] += random.in(-3, 3);
    }
    try {
      routing.hear(counts, false, messages);
      const size_t row_bytes = 8;
      routing.dispatch({&row_bytes, 1});
      routing.combine(row_bytes);
    } catch (const Error& error) {
      CHECK(error.code() == Code::backend || error.code() == Code::invalid_argument);
      ++refused;
    }
  }
  CHECK(refused > 500);
}

TEST("replicas of the own host go first, in turn; ranks that take no part get nothing") {
  const std::vector<std::vector<Rank>> ranks{{0, 1, 2, 3}, {1}, {}, {2, 0}};
  const std::vector<int> hosts{7, 7, 9, 9, 4};
  const std::vector<uint8_t> active{1, 0, 1, 1, 1};
  const auto homes_of = [](const ExpertPlacement::Turns& turns) {
    std::vector<Rank> found;
    for (const auto& home : turns.homes) found.push_back(home.rank);
    return found;
  };
  const ExpertPlacement all(5, ranks, {.hosts = hosts, .active = {}, .may_lack = true});
  CHECK(homes_of(all.turns(1, 0)) == std::vector<Rank>({0, 1}) && all.turns(1, 0).next == 1);
  CHECK(homes_of(all.turns(2, 0)) == std::vector<Rank>({2, 3}) && all.turns(2, 0).next == 0);
  CHECK(homes_of(all.turns(4, 0)) == std::vector<Rank>({0, 1, 2, 3}) && all.turns(4, 0).next == 4);
  CHECK(homes_of(all.turns(3, 3)) == std::vector<Rank>({2}));

  const ExpertPlacement some(5, ranks, {.hosts = hosts, .active = active, .may_lack = true});
  CHECK(some.hash() != all.hash());
  CHECK(some.experts_on(1) == 2 && !some.active(1) && some.active(0));
  CHECK(homes_of(some.turns(0, 0)) == std::vector<Rank>({0}) && some.homes(1).empty() && some.homes(2).empty());
  const auto placement = std::make_shared<const ExpertPlacement>(some);
  const std::vector<int64_t> chosen{0, 1, 2, -1, 3, 1};
  const Routing from_0(placement, 0, {chosen, 3, 2}, RowOrder::expert, 1),
      from_1(placement, 1, {chosen, 3, 2}, RowOrder::expert, 1);
  CHECK(std::ranges::equal(from_0.dropped(), std::vector<int64_t>{1, 2, 5}));
  CHECK(std::ranges::equal(from_0.sent(), std::vector<int64_t>{2, 0, 0, 0, 0}));
  CHECK(std::ranges::equal(from_1.dropped(), std::vector<int64_t>{0, 1, 2, 4, 5}));
  const std::vector<int> few{1};
  CHECK_THROWS(Code::invalid_argument, "1 hosts and 5 marks",
               ExpertPlacement(5, ranks, {.hosts = few, .active = active, .may_lack = true}));
}

TEST("placements and choices that are none are refused") {
  const std::vector<std::vector<Rank>> nobody{{0}, {}}, twice{{1, 1}}, outside{{2}};
  CHECK_THROWS(Code::invalid_argument, "expert_to_rank[1] is empty", ExpertPlacement(2, nobody));
  CHECK_THROWS(Code::invalid_argument, "expert_to_rank[0] has rank 1 twice", ExpertPlacement(2, twice));
  CHECK_THROWS(Code::invalid_argument, "rank 2, but the group has size 2", ExpertPlacement(2, outside));
  CHECK_THROWS(Code::invalid_argument, "cannot share equally", ExpertPlacement::blocks(2, 3));
  const auto placement = std::make_shared<const ExpertPlacement>(ExpertPlacement::blocks(2, 4));
  const std::vector<int64_t> beyond{0, 4}, below{0, -2}, same{1, 1};
  const auto make = [&](const std::vector<int64_t>& experts, RowOrder order = RowOrder::expert, int64_t align = 1) {
    Routing(placement, 0, {experts, 1, 2}, order, align);
  };
  CHECK_THROWS(Code::invalid_argument, "topk_idx[0][1] is 4, but there are 4 experts", make(beyond));
  CHECK_THROWS(Code::invalid_argument, "topk_idx[0][1] is -2", make(below));
  CHECK_THROWS(Code::invalid_argument, "topk_idx[0][1] is 1, which the token has already", make(same));
  CHECK_THROWS(Code::invalid_argument, "align is 0", make({0, 1}, RowOrder::expert, 0));
  CHECK_THROWS(Code::invalid_argument, "align is 2", make({0, 1}, RowOrder::rank, 2));
}

}  // namespace
