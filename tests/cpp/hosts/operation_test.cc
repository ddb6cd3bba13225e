#include "transport/hosts/operation.h"

#include <array>

#include "check.h"
#include "one_rank.h"
#include "transport/shm/peers/shm_progress.h"

namespace {

using namespace a2a;
using namespace a2a::hosts;

constexpr DType kBytes{1, 8, 1};

// Makes operations of rank 0.
struct Operations {
  explicit Operations(int size)
      : map(std::make_shared<HostMap>(hosts_test::apart(size))),
        network(std::make_shared<hosts_test::LoopbackNetwork>(std::make_shared<hosts_test::Hub>(size), 0)) {}

  std::shared_ptr<Operation> make(Batch batch) {
    batch.signature.number = 3;
    batch.signature.dtype = kBytes;
    auto stages = stage_runs(batch, 0, *map, scratch);
    return std::make_shared<Operation>(std::move(batch), std::move(stages), nullptr, progress, 0, map, network);
  }

  std::shared_ptr<const HostMap> map;
  std::shared_ptr<Network> network;
  std::shared_ptr<Progress> progress = shm::ShmProgress::of_this_thread();
  Scratch scratch;
};

// Facts of an operation in which a rank sends so many bytes.
Entry facts_of(const Operation& operation, Rank source, uint64_t sent) {
  Entry entry{source, 0, {}, {}};
  set_common(entry.facts, operation.batch().signature);
  entry.facts.sent = sent;
  entry.facts.delivery = sent > 0 ? Delivery::eager : Delivery::nothing;
  return entry;
}

TEST("the first failure is the one that the caller gets") {
  Operations of_rank(2);
  const auto operation = of_rank.make({});
  CHECK(!operation->wait_until(Deadline::after_seconds(0)));
  operation->fail(Error(Code::peer_lost, "rank 1 is gone"));
  operation->fail(Error(Code::aborted, "given up"));
  CHECK(operation->done() && !operation->arrived(1));
  CHECK_THROWS(Code::peer_lost, "rank 1 is gone", operation->wait());
  const auto fine = of_rank.make({});
  fine->finish(std::nullopt);
  fine->fail(Error(Code::aborted, "too late"));
  fine->wait();
}

TEST("what is sent is read when the earlier operations on that memory are finished, and once") {
  Operations of_rank(2);
  std::array<std::byte, 2> input{std::byte{1}, std::byte{2}};
  Batch batch;
  batch.copy = std::make_shared<std::byte[]>(2);
  batch.packs = {{0, input.data(), 2}};
  const auto copy = batch.copy;
  const auto earlier = of_rank.make({}), later = of_rank.make(std::move(batch));
  later->predecessors().add(earlier);
  CHECK(!later->may_begin() && copy[0] == std::byte{0});
  input[0] = std::byte{5};
  earlier->finish(std::nullopt);
  CHECK(later->may_begin() && copy[0] == std::byte{5});
  input[0] = std::byte{6};
  CHECK(later->may_begin() && copy[0] == std::byte{5});
}

TEST("of many disagreements a few are named, and the others are counted") {
  Operations of_rank(8);
  const auto operation = of_rank.make({});
  operation->remote->begin(nullptr, {});
  CHECK_EQ(operation->disagreements(), "");
  for (Rank peer = 7; peer > 0; --peer) operation->remote->handle(facts_of(*operation, peer, 10));
  const std::string text = operation->disagreements();
  const auto names = [&](Rank peer) { return text.find("rank " + std::to_string(peer) + " sends") != text.npos; };
  for (Rank peer = 1; peer <= 4; ++peer) CHECK(names(peer));
  CHECK(!names(5) && !names(6) && !names(7));
  CHECK(text.ends_with("; and with 3 ranks more"));
}

TEST("stages begin one after the other, and those between hosts have steps of their own") {
  Operations of_rank(2);
  Batch batch;
  batch.reach = Reach::network;
  batch.later.resize(2);
  batch.later[0].reach = Reach::host;
  batch.later[1].reach = Reach::network;
  const auto operation = of_rank.make(std::move(batch));
  CHECK_EQ(operation->step(), step_of(3, 0));
  CHECK(operation->on_network() && !operation->next_here() && !operation->all_begun_here());
  operation->posted = true;
  CHECK(operation->settle_local() && !operation->compared());
  CHECK(operation->begin_next_stage());
  CHECK(!operation->on_network() && !operation->posted);
  CHECK_EQ(operation->step(), step_of(3, 1));  // whose facts may be sent meanwhile
  CHECK(!operation->settle_local());           // its exchange on this host has not begun
  CHECK(operation->next_here().has_value());
  operation->begun_here(nullptr);
  CHECK(operation->all_begun_here() && !operation->next_here() && operation->settle_local() && operation->compared());
  CHECK(operation->begin_next_stage());
  CHECK(operation->on_network() && operation->step() == step_of(3, 1));
  CHECK(!operation->begin_next_stage());
}

}  // namespace
