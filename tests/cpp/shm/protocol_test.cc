// The steps of the protocol, one after the other in one thread: what a reader sees before a step and after it.
// tests/model has their interleavings.
#include "transport/shm/protocol/protocol.h"

#include <array>

#include "check.h"

namespace {

using namespace a2a;
using namespace a2a::shm;

using Pipe = Block::Pair;

TEST("a line belongs to the step that was published, and to no other") {
  Line line{};
  Head head{};
  CHECK(!observe(line, 5, &head));
  line.head.sent = 7;
  publish(line, 5);
  CHECK(is_published(line, 5) && !is_published(line, 4) && !is_published(line, 6));
  CHECK(observe(line, 5, &head) && head.sent == 7);
  CHECK_EQ(inline_payload(line) - reinterpret_cast<std::byte*>(&line), kInlineOffset);
}

TEST("a reader remembers the highest step that a peer has done") {
  RankWords words{};
  uint64_t known = 0;
  CHECK(is_done(words, 0, &known) && !is_done(words, 1, &known));
  publish_done(words, 6);
  CHECK(is_done(words, 4, &known) && known == 6);
  CHECK(is_done(words, 6, &known) && !is_done(words, 7, &known));
}

TEST("a line has its writer's backlog, saturated at kMostBacklog") {
  RankWords words{};
  publish_done(words, 10);
  CHECK_EQ(backlog(words, 12), 2);
  CHECK_EQ(backlog(words, 10'000), kMostBacklog);
  uint64_t known = 3;
  Head theirs{};
  theirs.backlog = 2 | kFlag;
  learn_from_backlog(theirs, 12, &known);
  CHECK_EQ(known, 10);
  theirs.backlog = 5;
  learn_from_backlog(theirs, 12, &known);  // is older
  CHECK_EQ(known, 10);
  theirs.backlog = kMostBacklog;
  learn_from_backlog(theirs, 10'000, &known);  // says nothing
  theirs.backlog = 100;
  learn_from_backlog(theirs, 99, &known);  // makes no sense
  CHECK_EQ(known, 10);
}

TEST("copies, and chunks instead of them, are of the step that was named") {
  Pipe pipe{};
  CHECK(!is_copied(pipe, 1) && !asks_for_chunks(pipe, 1) && !is_rewritten(pipe, 1));
  publish_copied(pipe, 4);
  CHECK(is_copied(pipe, 3) && is_copied(pipe, 4) && !is_copied(pipe, 5));
  ask_for_chunks(pipe, 4);
  publish_rewritten(pipe, 4);
  CHECK(asks_for_chunks(pipe, 4) && !asks_for_chunks(pipe, 3) && is_rewritten(pipe, 4) && !is_rewritten(pipe, 5));
}

TEST("chunks are listed in the order in which they change hands") {
  Flow flow{};
  for (uint64_t number = 0; number < kListed + 3; ++number) {
    enlist(flow, number, static_cast<uint8_t>(number % 7));
    publish_count(flow, number + 1);
    CHECK(count_of(flow) == number + 1 && listed(flow, number) == number % 7);
  }
  CHECK_EQ(listed(flow, 0), kListed % 7);  // was replaced
}

TEST("a sleeping rank is woken, and one with news does not sleep") {
  SeatWords seat{};
  BellWord bell{};
  before_waking<StdAtomics>();
  CHECK(!must_wake(seat, bell) && bell.rings == 0);
  int slept = 0;
  sleep_unless(seat, bell, [] { return true; }, [&](uint32_t) { ++slept; });
  CHECK_EQ(slept, 0);
  sleep_unless(
      seat, bell, [] { return false; },
      [&](uint32_t ticket) {
        ++slept;
        CHECK_EQ(ticket, bell.rings.load());
        CHECK(must_wake(seat, bell) && bell.rings == ticket + 1);
      });
  CHECK(slept == 1 && seat.sleepers == 0);
}

TEST("words of abort, leave and copying") {
  RankWords words{};
  CHECK(abort_of(words) == 0 && left_of(words) == Left::no && !is_copying(words, 2));
  post_abort(words, static_cast<uint32_t>(Code::timeout));
  CHECK_EQ(abort_of(words), static_cast<uint32_t>(Code::timeout));
  publish_left(words, Left::dropped);
  CHECK(left_of(words) == Left::dropped);
  begin_copying(words, 2);
  CHECK(is_copying(words, 2) && !is_copying(words, 3));
  begin_copying(words, kAnyPeer);
  CHECK(is_copying(words, 2) && is_copying(words, 3));
  end_copying(words);
  CHECK(!is_copying(words, 2));
}

TEST("views, notices and disagreements are of one number") {
  Viewing<StdAtomics> word{};
  begin_viewing(word, 3);
  CHECK(is_viewing(word, 3) && !is_viewing(word, 2));
  end_viewing(word);
  CHECK(!is_viewing(word, 3));
  RankWords words{};
  publish_notice(words, 6, notice(3, 1, 1));
  CHECK(notice_of(words, 6) == notice(3, 1, 1) && notice_of(words, 7) == 0);
  publish_disagreement(words, 6);
  CHECK(has_disagreement(words, 6) && !has_disagreement(words, 6 + kSlots));
}

TEST("a proposal is read whole or not at all") {
  RankWords words{};
  std::array<uint64_t, 2> alive{}, proposed{5, 9};
  bool committed = true;
  CHECK(!read_proposal(words, alive, &committed));
  propose(words, proposed);
  CHECK(read_proposal(words, alive, &committed) && !committed && alive == proposed);
  commit(words);
  CHECK(read_proposal(words, alive, &committed) && committed);
  ++words.version;  // its rank is writing another one
  CHECK(!read_proposal(words, alive, &committed));
}

}  // namespace
