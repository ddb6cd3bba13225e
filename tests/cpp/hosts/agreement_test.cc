// Survivors agree on their set, whatever the order of their messages.
#include "transport/hosts/agreement.h"

#include "hosts/one_rank.h"

namespace {

using namespace hosts_test;

struct Group {
  explicit Group(int size) : hub(std::make_shared<Hub>(size)), map(std::make_shared<const HostMap>(apart(size))) {
    for (Rank r = 0; r < size; ++r) {
      networks.push_back(std::make_shared<LoopbackNetwork>(hub, r));
      ranks.push_back(nullptr);
    }
  }
  // The rank comes to the agreement.
  void come(Rank r) {
    GroupCard card;
    card.channel = 100 + static_cast<uint64_t>(r);
    ranks[static_cast<size_t>(r)] = std::make_unique<Agreement>(r, map, networks[static_cast<size_t>(r)], 5, card);
  }
  // Some of what a rank has posted and others have not taken does not reach them.
  void die(Rank r, check::Random& random) {
    for (size_t to = 0; to < ranks.size(); ++to) {
      if (random.in(0, 1) == 0) lose(r, static_cast<Rank>(to));
    }
    ranks[static_cast<size_t>(r)].reset();
    const std::lock_guard lock(hub->mutex);
    hub->losses[r] = {Deadline::Clock::now(), "killed"};
  }
  void lose(Rank from, Rank to) {
    const std::lock_guard lock(hub->mutex);
    hub->inboxes[static_cast<size_t>(to)].remove_if([&](const auto& message) { return message.from == from; });
  }
  bool advance(Rank r) { return ranks[static_cast<size_t>(r)]->advance(); }

  std::shared_ptr<Hub> hub;
  std::shared_ptr<const HostMap> map;
  std::vector<std::shared_ptr<LoopbackNetwork>> networks;
  std::vector<std::unique_ptr<Agreement>> ranks;
};

TEST("all survivors come to one set, in any order of steps and deaths") {
  check::Random random(check::seed());
  for (int round = 0; round < 300; ++round) {
    const check::Note note("round", static_cast<uint64_t>(round));
    const int size = random.in(2, 5);
    Group group(size);
    for (Rank r = 0; r < size; ++r) group.come(r);
    std::vector<bool> done(static_cast<size_t>(size));
    int deaths = random.in(1, size - 1);
    for (int step = 0; step < 2000; ++step) {
      const Rank r = random.in(0, size - 1);
      auto& rank = group.ranks[static_cast<size_t>(r)];
      if (rank == nullptr) continue;
      if (deaths > 0 && !done[static_cast<size_t>(r)] && random.in(0, 9) == 0) {
        --deaths;
        group.die(r, random);
      } else if (group.advance(r)) {
        done[static_cast<size_t>(r)] = true;
      }
    }
    std::vector<Rank> agreed;
    for (Rank r = 0; r < size; ++r) {
      auto& rank = group.ranks[static_cast<size_t>(r)];
      if (rank == nullptr) continue;
      if (!CHECK(done[static_cast<size_t>(r)])) return;
      if (agreed.empty()) agreed = rank->members();
      CHECK_EQ(rank->members(), agreed);
      CHECK(std::ranges::find(agreed, r) != agreed.end());
      for (const Rank member : agreed) CHECK_EQ(rank->card_of(member).channel, 100u + static_cast<uint64_t>(member));
    }
  }
}

TEST("a rank that has not come is waited for, and named") {
  Group group(3);
  group.come(0);
  group.come(1);
  check::Random random(check::seed());
  group.die(2, random);
  for (int step = 0; step < 50; ++step) group.advance(0);
  CHECK_EQ(group.ranks[0]->undecided(), "rank 1");
  for (int step = 0; step < 50; ++step) group.advance(0), group.advance(1);
  CHECK(group.advance(0) && group.advance(1));
  CHECK_EQ(group.ranks[0]->members(), std::vector<Rank>({0, 1}));
}

TEST("a rank that goes along with another one's commitment has the cards of all members") {
  Group group(3);
  for (Rank r = 0; r < 3; ++r) group.come(r);
  CHECK(!group.advance(0));
  group.lose(0, 2);
  CHECK(!group.advance(1) && !group.advance(2));
  CHECK(group.advance(1));  // it has heard all
  group.lose(0, 2);
  CHECK(group.advance(2));
  CHECK_EQ(group.ranks[2]->members(), std::vector<Rank>({0, 1, 2}));
  for (const Rank r : {0, 1}) CHECK_EQ(group.ranks[2]->card_of(r).channel, 100u + static_cast<uint64_t>(r));
}

TEST("a rank that declines is left out") {
  Group group(3);
  group.come(0);
  group.come(2);
  Agreement::decline(1, *group.map, *group.networks[1], 5);
  for (int step = 0; step < 50; ++step) group.advance(0), group.advance(2);
  CHECK(group.advance(0) && group.advance(2));
  CHECK_EQ(group.ranks[2]->members(), std::vector<Rank>({0, 2}));
}

}  // namespace
