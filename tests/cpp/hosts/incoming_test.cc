// Messages of other hosts that come early, or late, or that no rank would send.
#include "check.h"
#include "one_rank.h"

namespace {

using namespace a2a;
using namespace a2a::hosts;
using hosts_test::OneRank;

std::string list_of(const Entry& entry) {
  std::string list;
  append(list, entry);
  return list;
}

// Whether the message breaks the communicator as one that makes no sense.
bool breaks(const char* text, const std::function<void(OneRank&)>& post) {
  OneRank rank(3);
  const auto work = rank.start(1);
  post(rank);
  const auto error = rank.transport().broken();
  return error && error->code() == Code::backend && error->what() == std::string(text) && work->done();
}

TEST("a rank may be ahead of this one") {
  OneRank rank(3);
  for (const uint64_t number : {2, 1, 3}) rank.come(1, number);
  CHECK(!rank.transport().broken());  // which has read them
  for (const uint64_t number : {1, 2, 3}) {
    const auto work = rank.start(number);
    CHECK(!work->done());
    rank.come(2, number);
    work->wait();
  }
}

TEST("a message in another rank's name, or of none, breaks the communicator") {
  const char* const text = "loopback: a message makes no sense";
  const auto in_name_of = [](Rank source) {
    return
        [source](OneRank& rank) { rank.post_bytes(1, message({rank.channel(), MessageKind::left, 0, source, 9}, {})); };
  };
  CHECK(!breaks(text, in_name_of(1)));
  CHECK(breaks(text, in_name_of(2)));
  CHECK(breaks(text, in_name_of(-1)));
  CHECK(breaks(text, in_name_of(3)));
  CHECK(breaks(text, [](OneRank& rank) {
    rank.post_bytes(1, message({rank.channel(), MessageKind::left, 0, 1, 9}, {}).substr(0, 12));
  }));
}

TEST("a message of a rank that makes no sense breaks the communicator, and names the rank") {
  const auto no_sense = [](MessageKind kind, std::string_view rest = {}, uint16_t stage = 0) {
    return breaks("loopback: a message of rank 1 makes no sense",
                  [&](OneRank& rank) { rank.post(1, kind, 1, rest, stage); });
  };
  const std::string list = list_of({1, 0, {}, {}});
  CHECK(!no_sense(MessageKind::facts, list));
  CHECK(no_sense(MessageKind::facts, list, kMostStages));
  CHECK(no_sense(MessageKind::facts, list.substr(1)));
  CHECK(no_sense(MessageKind::facts, list_of({3, 0, {}, {}})));
  CHECK(no_sense(MessageKind::facts, list_of({1, -1, {}, {}})));
  CHECK(no_sense(MessageKind::bundle, list));  // nobody relays
  CHECK(no_sense(MessageKind::no_bundle));
  CHECK(no_sense(MessageKind::aborted, "why"));
  CHECK(no_sense(MessageKind::sent, "?"));
  CHECK(no_sense(MessageKind::answered, "?"));
  CHECK(no_sense(MessageKind::text, "hello"));
  CHECK(no_sense(static_cast<MessageKind>(99)));
}

TEST("a rank that gives up with an error that this version does not know has aborted") {
  OneRank rank(2);
  rank.give_up(1, Error(static_cast<Code>(99), "unheard of"));
  const auto error = rank.transport().broken();
  CHECK(error && error->code() == Code::aborted && error->what() == std::string("unheard of"));
}

TEST("facts for another rank are passed on to it") {
  OneRank rank(3);
  rank.come(1, 4, 2);
  CHECK(!rank.transport().broken());
  const auto passed_on = rank.told(2, MessageKind::facts);
  if (!CHECK_EQ(passed_on.size(), 1)) return;
  CHECK_EQ(passed_on[0].first.number, 4);
  const auto entries = entries_of(passed_on[0].second);
  CHECK(entries && entries->size() == 1 && entries->front().source == 1 && entries->front().target == 2);
}

TEST("an operation that is only compared waits for the verdict of all, which may come early") {
  for (const std::string_view verdict : {"", "rank 1 and rank 2 disagree"}) {
    OneRank rank(3);
    rank.post(1, MessageKind::verdict, 1, verdict);
    rank.come(1, 1), rank.come(2, 1);
    CHECK(!rank.transport().broken());
    Batch batch;
    batch.signature = OneRank::barrier(1);
    batch.way = Way::compare;
    batch.deadline = Deadline::after_seconds(20);
    const auto work = rank.transport().start(std::move(batch));
    if (!verdict.empty()) {
      CHECK_THROWS(Code::mismatch, "rank 1 and rank 2 disagree", work->wait());
      continue;
    }
    CHECK(!work->wait_until(Deadline::after_seconds(0.02)));
    rank.post(2, MessageKind::verdict, 1);
    work->wait();
  }
}

}  // namespace
