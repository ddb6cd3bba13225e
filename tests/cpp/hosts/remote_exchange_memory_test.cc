// The bytes of an exchange between hosts that go from memory to memory.
#include "check.h"
#include "core/send_order.h"
#include "exchange_ends.h"

namespace {

using namespace a2a;
using namespace a2a::hosts;
using hosts_test::Bytes;
using hosts_test::bytes_from;
using hosts_test::Ends;

constexpr size_t kMany = 100'000;

TEST("many short runs are one transfer, and each long run is one") {
  for (const auto& [runs, transfers] : {std::pair<size_t, size_t>{50, 1}, {4, 4}}) {
    const check::Note note("runs", runs);
    Bytes input = bytes_from(kMany), output(kMany);
    Ends ends;
    const size_t each = kMany / runs;
    for (size_t i = 0; i < runs; ++i) {
      const size_t from = (runs - 1 - i) * each;
      ends.move(0, std::span(input).subspan(from, each), 1, std::span(output).subspan(from, each));
    }
    CHECK(ends.run() && output == input);
    CHECK_EQ(ends[0].network->sent(), transfers);
  }
}

TEST("memory with gaps on either side arrives at its places, and nothing is written between them") {
  const std::vector<int64_t> shape{static_cast<int64_t>(kMany)}, step{2};
  const Strides every_second(TensorLayout{shape, step, 1});
  Bytes input = bytes_from(2 * kMany), output(2 * kMany);
  for (const bool gaps_sent : {false, true}) {
    Ends ends;
    ends.move(0, std::span(input).first(kMany), 1, std::span(output).first(kMany));
    (gaps_sent ? ends[0].batch.sends[0] : ends[1].batch.recvs[0]).strides = &every_second;
    output.assign(2 * kMany, std::byte{0});
    CHECK(ends.run());
    Bytes expected(2 * kMany);
    for (size_t i = 0; i < kMany; ++i) gaps_sent ? expected[i] = input[2 * i] : expected[2 * i] = input[i];
    CHECK(output == expected);
  }
}

TEST("only so many sends are under way at once, and all arrive") {
  constexpr int kRanks = kSendWindow + 4;
  Bytes input = bytes_from(kMany);
  std::vector<Bytes> outputs(kRanks, Bytes(kMany));
  Ends ends(kRanks);
  for (int r = 1; r < kRanks; ++r) ends.move(0, input, r, outputs[static_cast<size_t>(r)]);
  ends.begin();
  ends.deliver();
  CHECK_EQ(ends[0].network->sent(), kSendWindow);
  CHECK(ends[0].exchange->waits_for_network() && !ends[0].exchange->sent_at_once());
  CHECK(ends.finish());
  for (int r = 1; r < kRanks; ++r) CHECK(outputs[static_cast<size_t>(r)] == input);
}

TEST("the memory of a failed exchange is kept as long as the network has it") {
  hosts_test::clings = true;
  Bytes input = bytes_from(kMany), output(kMany);
  Ends ends;
  ends.move(0, input, 1, output);
  ends.begin();
  const Entry facts = [&] {  // those of rank 1, whose own receive comes later
    Entry entry{1, 0, {}, {}};
    set_common(entry.facts, ends[0].batch.signature);
    entry.facts.expected = kMany;
    return entry;
  }();
  ends[0].exchange->handle(facts);
  CHECK(!ends[0].exchange->finished());
  ends[0].exchange->abandon();
  CHECK(!ends[0].exchange->let_go());
  ends.finish();
  CHECK(ends[0].exchange->let_go());
  hosts_test::clings = false;
  ends.begin();
  ends[0].exchange->handle(facts);
  ends[0].exchange->abandon();
  CHECK(ends[0].exchange->let_go());
}

TEST("an exchange does not wait until a rank takes repeated bytes that has left") {
  Bytes input[2] = {bytes_from(kMany), bytes_from(kMany)}, output[2] = {Bytes(kMany), Bytes(kMany)};
  Ends ends;
  for (const int r : {0, 1}) ends.move(r, input[r], 1 - r, output[1 - r]);
  CHECK(ends.run());
  output[0].assign(kMany, std::byte{0});
  ends[1].repeats = false;
  ends[1].batch.recvs[0].bytes = kMany / 2;
  ends[1].batch.sends[0].bytes = kMany / 2;
  RemoteExchange& exchange = (ends.begin(), *ends[0].exchange);
  Entry entry{1, 0, {}, {}};
  set_common(entry.facts, ends[0].batch.signature);
  CHECK(exchange.handle(entry).has_value());  // its answer tells of the bytes
  exchange.advance();
  CHECK(exchange.disagreements().size() == 1 && !exchange.finished());
  exchange.part_from(1);
  CHECK(exchange.finished() && exchange.let_go());
  CHECK(output[0] == Bytes(kMany));
}

}  // namespace
