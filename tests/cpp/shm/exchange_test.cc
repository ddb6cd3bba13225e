// One operation, with a peer whose line the test writes: how it ends, and what it is missing until then.
#include "transport/shm/exchange.h"

#include <cstring>

#include "../../fuzz/hostile_peer.h"
#include "check.h"
#include "transport/shm/protocol/texts.h"

namespace {

using namespace a2a;
using namespace a2a::shm;
using fuzz::HostilePeer;

constexpr Rank kMe = HostilePeer::kMe, kPeer = HostilePeer::kPeer;

struct Running {
  explicit Running(Way way = Way::exchange, std::string refusal = "") {
    Batch batch;
    batch.signature = {Op::alltoallv, Memory::host, DType{1, 8, 1}, 1, 0};
    batch.way = way;
    batch.refusal = refusal;
    if (refusal.empty()) {
      batch.sends = {{kPeer, input.data(), input.size()}};
      batch.recvs = {{kPeer, output.data(), output.size()}};
    }
    set_common(head, batch.signature);
    head.sent = output.size(), head.expected = input.size();
    exchange.begin(std::move(batch));
    CHECK(exchange.may_begin() && exchange.post(peer.membership()) && exchange.posted());
  }
  void publish(Kind kind) { peer.publish_line(1, head, kind, 1); }
  void advance() {
    for (int step = 0; step < 10 && !exchange.finished(); ++step) exchange.advance(peer.membership());
  }

  HostilePeer peer;
  std::array<std::byte, 8> input{}, output{};
  Head head{};
  Exchange exchange{peer.progress(), kMe, 2};
};

TEST("an operation ends when the peer's line has come, and names the peer until then") {
  Running one;
  one.advance();
  CHECK(!one.exchange.finished() && one.exchange.needs(one.peer.membership(), kPeer));
  CHECK(one.exchange.missing(one.peer.membership()).find("rank 1") != std::string::npos);
  one.publish(Kind::shared);
  std::memcpy(one.peer.data(), "received", 8);
  one.advance();
  CHECK(one.exchange.finished() && !one.exchange.error() && one.exchange.wait_until(Deadline::never()));
  CHECK(std::memcmp(one.output.data(), "received", 8) == 0);
}

TEST("other facts in the line are an error, and no byte is written") {
  Running one;
  ++one.head.sent;
  one.publish(Kind::shared);
  std::memset(one.peer.data(), 1, 16);
  one.advance();
  CHECK_THROWS(Code::mismatch, "rank 1", one.exchange.wait_until(Deadline::never()));
  CHECK(one.output == (std::array<std::byte, 8>{}));
}

TEST("the reason of a peer's refusal is in the error") {
  Running one;
  write_text(one.peer.block().words().refusal_text[first_step(1) % kSlots], "counts[0] = -1");
  one.publish(Kind::refused);
  one.advance();
  CHECK_THROWS(Code::mismatch, "refused there: counts[0] = -1", one.exchange.wait_until(Deadline::never()));
}

TEST("a rank that refuses has nothing to wait for but the lines") {
  Running one(Way::exchange, "no");
  one.publish(Kind::shared);
  one.advance();
  CHECK(one.exchange.finished() && !one.exchange.error());
}

TEST("a peer that runs it on a device without comparing contradicts an exchange, and agrees with a comparison") {
  for (const Way way : {Way::exchange, Way::compare}) {
    Running one(way);
    publish_done(one.peer.block().words(), last_step(1));
    one.exchange.look_for_pass(one.peer.membership(), kPeer);
    one.advance();
    if (!CHECK(one.exchange.finished())) continue;
    CHECK_EQ(one.exchange.error().has_value(), way == Way::exchange);
    if (way == Way::exchange) {
      CHECK_THROWS(Code::mismatch, "on a device without comparing", one.exchange.wait_until(Deadline::never()));
    }
  }
}

TEST("an operation that has failed keeps its first error") {
  Running one;
  one.exchange.fail(one.peer.membership(), Error(Code::timeout, "late"));
  one.exchange.fail(one.peer.membership(), Error(Code::aborted, "later"));
  CHECK_THROWS(Code::timeout, "late", one.exchange.wait_until(Deadline::never()));
}

}  // namespace
