#include "transport/hosts/cached_matches.h"

#include "check.h"

namespace {

using namespace a2a;
using namespace a2a::hosts;

// A match in which this rank sends so many bytes, and the other one has that tag.
CachedMatch match_of(uint64_t sent, uint64_t their_tag) {
  CachedMatch match;
  match.mine.sent = sent;
  match.mine.repeated = match.theirs.repeated = Delivery::rendezvous;
  match.theirs.tag = their_tag;
  return match;
}

// Returns the other rank's tag in the match that is repeated when this rank sends so many bytes; 0: none is.
uint64_t repeated(const CachedMatches& matches, uint64_t sent) {
  const CachedMatch* const found = matches.find(match_of(sent, 0).mine);
  return found == nullptr ? 0 : found->theirs.tag;
}

TEST("only the same facts are repeated, however their bytes travel") {
  CachedMatches matches;
  CHECK(matches.empty());
  matches.note(match_of(100, 7));
  CHECK(!matches.empty());
  CHECK_EQ(repeated(matches, 100), 7);
  CHECK_EQ(repeated(matches, 101), 0);
  const auto found = [&](auto change) {
    SentFacts facts = match_of(100, 0).mine;
    change(facts);
    return matches.find(facts) != nullptr;
  };
  CHECK(found([](SentFacts& facts) { facts.delivery = Delivery::packed, facts.tag = 9; }));
  CHECK(!found([](SentFacts& facts) { facts.expected = 1; }));
  CHECK(!found([](SentFacts& facts) { facts.sent_hash = 1; }));
  CHECK(!found([](SentFacts& facts) { facts.expected_hash = 1; }));
  CHECK(!found([](SentFacts& facts) { facts.dtype = 1; }));
  CHECK(!found([](SentFacts& facts) { facts.plan = 1; }));
  CHECK(!found([](SentFacts& facts) { facts.op = 1; }));
  CHECK(!found([](SentFacts& facts) { facts.memory = 1; }));
}

TEST("a forgotten match is not repeated until both agree again") {
  CachedMatches matches;
  matches.note(match_of(100, 7));
  matches.note(match_of(200, 8));
  matches.forget(7);
  CHECK_EQ(repeated(matches, 100), 0);
  CHECK_EQ(repeated(matches, 200), 8);
  matches.note(match_of(100, 9));
  CHECK_EQ(repeated(matches, 100), 9);
}

TEST("the latest match of some facts counts, and of many facts the oldest are dropped") {
  CachedMatches matches;
  for (uint64_t i = 1; i <= 8; ++i) matches.note(match_of(i, i));
  matches.note(match_of(8, 80));
  for (uint64_t i = 1; i <= 8; ++i) CHECK_EQ(repeated(matches, i), i == 8 ? 80 : i);
  matches.note(match_of(9, 9));
  CHECK_EQ(repeated(matches, 1), 0);
  for (uint64_t i = 2; i <= 9; ++i) CHECK_EQ(repeated(matches, i), i == 8 ? 80 : i);
}

}  // namespace
