#include "transport/hosts/remote_exchange.h"

#include "check.h"
#include "exchange_ends.h"

namespace {

using namespace a2a;
using namespace a2a::hosts;
using hosts_test::Bytes;
using hosts_test::bytes_from;
using hosts_test::Ends;

constexpr size_t kMany = 100'000;  // more than go with the facts

// Two ranks exchange so many bytes, and more than once.
struct Swap : Ends {
  explicit Swap(size_t bytes) : input{bytes_from(bytes, 1), bytes_from(bytes, 50)}, output{Bytes(bytes), Bytes(bytes)} {
    for (const int r : {0, 1}) move(r, input[r], 1 - r, output[1 - r]);
  }
  bool right() const { return output[0] == input[1] && output[1] == input[0]; }
  void clear() {
    for (Bytes& bytes : output) bytes.assign(bytes.size(), std::byte{0});
  }
  Bytes input[2], output[2];
};

TEST("few bytes come with the facts, and many from memory to memory") {
  for (const size_t bytes : {size_t{1}, kMany}) {
    const check::Note note("bytes", bytes);
    Swap ends(bytes);
    ends.begin();
    CHECK(!ends[0].exchange->arrived(1) && ends[0].exchange->waits_for(1) && ends[0].exchange->expects_facts());
    CHECK(ends.finish() && ends.right());
    CHECK(ends[0].exchange->arrived(1) && !ends[0].exchange->waits_for(1));
    CHECK_EQ(ends[0].network->sent(), bytes == kMany ? 1 : 0);
  }
}

TEST("no byte of a pair that disagrees is written, and both say the same") {
  for (const size_t bytes : {size_t{8}, kMany}) {
    Bytes input = bytes_from(bytes), output(bytes);
    Ends ends;
    ends.move(0, input, 1, std::span(output).first(bytes / 2));
    CHECK(ends.run());
    if (!CHECK(ends[0].disagreements().size() == 1 && ends[1].disagreements().size() == 1)) return;
    CHECK_EQ(ends[0].disagreements()[0], ends[1].disagreements()[0]);
    CHECK(output == Bytes(bytes) && !ends[1].exchange->arrived(0));
  }
}

TEST("a rank whose arguments were refused tells its peers why, and waits for none of their bytes") {
  Bytes input = bytes_from(kMany);
  Ends ends;
  ends[0].batch.sends = {{1, input.data(), kMany}};
  ends[1].batch.refusal = "counts[0] = -1";
  CHECK(ends.run());
  CHECK(ends[0].disagreements().size() == 1 &&
        ends[0].disagreements()[0].find("rank 1 does not take part, its arguments were refused there: counts[0]") !=
            std::string::npos);
  CHECK(ends[1].disagreements().empty());
}

TEST("an exchange that both repeat needs no facts, and one with other sizes does") {
  Swap ends(kMany);
  CHECK(ends.run() && ends[0].told == 1);
  ends.clear();
  CHECK(ends.run() && ends.right());
  CHECK(ends[0].told == 0 && ends[1].told == 0);
  for (const int r : {0, 1}) {
    ends[r].batch.sends[0].bytes = ends[r].batch.recvs[0].bytes = kMany / 2;
    ends.output[r].assign(kMany, std::byte{0});
  }
  CHECK(ends.run() && ends[0].told == 1);
  CHECK(std::ranges::equal(std::span(ends.output[0]).first(kMany / 2), std::span(ends.input[1]).first(kMany / 2)));
}

TEST("a rank that repeats answers one that does not, and the bytes under way are used") {
  Swap ends(kMany);
  CHECK(ends.run());
  ends.clear();
  ends[1].repeats = false;
  CHECK(ends.run() && ends.right());
  CHECK(ends[0].told == 1 && ends[1].told == 1);
  CHECK_EQ(ends[0].network->sent(), 2);  // one of each exchange
}

TEST("bytes that were repeated for a rank with other facts are dropped, and both say that they disagree") {
  Swap ends(kMany);
  CHECK(ends.run());
  ends.clear();
  ends[1].batch.recvs[0].bytes = kMany / 2;
  CHECK(ends.run());
  CHECK(ends[0].disagreements().size() == 1 && ends[0].disagreements() == ends[1].disagreements());
  CHECK(ends.output[0] == Bytes(kMany) && ends.output[1] == Bytes(kMany));
  ends[1].batch.recvs[0].bytes = kMany;
  CHECK(ends.run() && ends.right());
  CHECK_EQ(ends[0].told, 1);  // what they repeated is forgotten
}

TEST("ranks that wait for each other's repeated bytes send their facts after all, once") {
  Swap ends(kMany);
  CHECK(ends.run());
  ends.begin();
  const auto now = Deadline::Clock::now();
  RemoteExchange& waiting = *ends[0].exchange;
  CHECK(!waiting.expects_facts() && waiting.waits_for(1));
  CHECK(waiting.send_facts_late(now).empty());
  const auto late = waiting.send_facts_late(now + kRepeatTimeout);
  CHECK(late.size() == 1 && late[0].facts.repeats == 1);
  CHECK(waiting.send_facts_late(now + 2 * kRepeatTimeout).empty());
  CHECK(ends.finish());
}

TEST("a peer that runs the operation on a device disagrees, unless it is only compared") {
  for (const Way way : {Way::exchange, Way::compare}) {
    Ends ends;
    ends[0].batch.way = way;
    ends.begin();
    ends[0].exchange->handle_passed(1);
    CHECK(ends[0].exchange->finished());
    const auto& found = ends[0].disagreements();
    CHECK_EQ(found.size(), way == Way::compare ? 0 : 1);
    for (const auto& text : found) {
      CHECK(text.find("rank 1 runs it on a device without comparing, rank 0 in host memory") != std::string::npos);
    }
  }
  Ends refused;
  refused[0].batch.refusal = "no";
  refused.begin();
  CHECK_THROWS(Code::aborted, "other ranks run it on a device already", refused[0].exchange->handle_passed(1));
}

TEST("facts that promise other bytes than those that come are no facts") {
  Bytes output(8);
  Ends ends;
  ends[0].batch.recvs = {{1, output.data(), output.size()}};
  ends.begin();
  Entry entry{1, 0, {}, "1234567"};
  set_common(entry.facts, ends[0].batch.signature);
  entry.facts.sent = output.size();
  entry.facts.delivery = Delivery::eager;
  CHECK_THROWS(Code::backend, "loopback: rank 1 sent a message that makes no sense", ends[0].exchange->handle(entry));
  CHECK(output == Bytes(8));
}

}  // namespace
