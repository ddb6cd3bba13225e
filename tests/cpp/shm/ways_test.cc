// Each way of bytes from a peer, and to it: the receiver gets the bytes that were sent.
#include "transport/shm/ways/ways.h"

#include <algorithm>

#include "one_pair.h"

namespace {

using namespace shm_test;
using In = Pair::In;

Batch receives(Bytes& into) {
  Batch batch;
  batch.recvs = {{kPeer, into.data(), into.size()}};
  return batch;
}

TEST("what a peer sends is taken, and read piece by piece, on every way") {
  check::Random random(check::seed());
  OnePair pair;
  for (const Kind kind : {Kind::inlined, Kind::staged, Kind::shared, Kind::pointer, Kind::cma}) {
    pair.link().host().same_process = kind == Kind::pointer;
    for (const size_t bytes : {size_t{5}, size_t{500}, size_t{70'000}, size_t{600'001}}) {
      if (kind == Kind::inlined && bytes > inline_bytes(2)) continue;
      for (const size_t runs : {size_t{1}, size_t{3}}) {
        const check::Note note("kind", static_cast<uint64_t>(kind)), second("bytes", bytes), third("runs", runs);
        Bytes output(bytes);
        pair.begin(receives(output));
        const Bytes sent = pair.send(kind, bytes, kind == Kind::shared || kind >= Kind::pointer ? runs : 1, random);
        pair.open();
        for (int step = 0; step < 100 && pair.operation.pair(kPeer).in != In::arrived; ++step) take(pair.link());
        CHECK(pair.operation.pair(kPeer).in == In::arrived && output == sent);
        if (kind != Kind::inlined && kind != Kind::staged) CHECK(is_copied(pair.link().own_pipe(), 1));

        Bytes read;
        pair.begin(receives(output));
        const Bytes again = pair.send(kind, bytes, 1, random);
        pair.open();
        for (auto there = peek(pair.link()); !there.empty(); there = peek(pair.link())) {
          const size_t part = random.in(size_t{1}, there.size());
          read.insert(read.end(), there.begin(), there.begin() + static_cast<ptrdiff_t>(part));
          consume(pair.link(), part);
          if (pair.operation.pair(kPeer).in == In::arrived) break;
        }
        CHECK(pair.operation.pair(kPeer).in == In::arrived && read == again);
      }
    }
  }
}

TEST("a line with too many bytes for its way, or memory outside of the segment, is invalid") {
  check::Random random(check::seed());
  OnePair pair;
  Bytes output(inline_bytes(2) + 1);
  pair.begin(receives(output));
  Pair& p = pair.operation.pair(kPeer);
  p.theirs.kind = static_cast<uint8_t>(Kind::inlined);
  p.theirs.sent = output.size();
  CHECK_THROWS(Code::backend, "rank 1", inlined::begin(pair.link()));
  p.theirs = {};
  p.theirs.sent = output.size(), p.theirs.count = 1, p.theirs.where = HostilePeer::kSegment - output.size() + 1;
  CHECK_THROWS(Code::backend, "rank 1", pull::begin(pair.link(), Kind::shared));
  CHECK_THROWS(Code::backend, "rank 1", pull::begin(pair.link(), Kind::pointer));  // it is another process
  p.theirs.where = UINT64_MAX;
  CHECK_THROWS(Code::backend, "rank 1", staged::begin(pair.link()));
}

TEST("where memory cannot be read, chunks are asked for") {
  check::Random random(check::seed());
  OnePair pair;
  pair.peer.allow_cma(false);
  Bytes output(1000);
  pair.begin(receives(output));
  pair.send(Kind::cma, output.size(), 1, random);
  pair.open();
  CHECK(pair.operation.pair(kPeer).in == In::asking);
  CHECK(asks_for_chunks(pair.link().own_pipe(), pair.operation.step()));
}

TEST("few bytes are offered in the line, many in a chunk or where they lie") {
  OnePair pair;
  Bytes input(400'000);
  std::ranges::generate(input, [n = 0]() mutable { return static_cast<std::byte>(n++); });
  const auto sends = [&](size_t bytes) {
    Batch batch;
    batch.sends = {{kPeer, input.data(), bytes}};
    pair.begin(std::move(batch));
    return pair.link();
  };
  const auto begins = [&](const std::byte* there, size_t bytes) {
    return std::equal(there, there + bytes, input.begin());
  };
  const Link few = sends(100);
  inlined::offer(few);
  CHECK(begins(inline_payload(few.own_line()), 100));
  const Link many = sends(input.size());
  staged::offer(many);
  Pair& p = pair.operation.pair(kPeer);
  const Chunks& chunks = pair.peer.membership().peer(kPeer).chunks;
  if (!CHECK(p.mine.count > 0)) return;
  CHECK(begins(chunks.data(static_cast<uint8_t>(p.mine.count - 1)), chunks.shape().bytes));
  CHECK(p.out == Pair::Out::streaming && p.out_left == 1);
  CHECK(staged::send(many) && p.out == Pair::Out::settled);
  CHECK_EQ(count_of(many.own_pipe().handed), 2);
  const Link one = sends(input.size());
  pull::offer(one, Kind::cma);
  CHECK(p.mine.count == 1 && p.mine.where == reinterpret_cast<uint64_t>(input.data()));
  CHECK(p.out == Pair::Out::unacknowledged && !pull::settle(one));
  publish_copied(pair.peer.block().pipe(kMe), pair.operation.step());
  CHECK(pull::settle(one) && p.out == Pair::Out::settled);
}

}  // namespace
