// A peer that writes anything into the words it shares: lines, counters, lists of runs, texts.
#include "hostile_peer.h"
#include "input.h"

namespace {

using namespace fuzz;

constexpr size_t kSizes[] = {0, 1, 81, inline_bytes(2) + 1, 5000, 40000, 200000};
constexpr Kind kKinds[] = {Kind::none,    Kind::inlined, Kind::staged,  Kind::shared,
                           Kind::pointer, Kind::cma,     Kind::refused, static_cast<Kind>(250)};

Played operation_of(Input& input, uint64_t number) {
  Played operation;
  const auto choice = input.take<uint16_t>();
  operation.number = number;
  operation.sends = kSizes[choice % std::size(kSizes)];
  operation.recvs = kSizes[choice / 7 % std::size(kSizes)];
  operation.kind = kKinds[choice / 49 % std::size(kKinds)];
  operation.runs = operation.recvs > 3 && (choice & 0x2000) != 0 ? 3 : 1;
  operation.way = (choice & 0xC000) == 0xC000 ? Way::compare : Way::exchange;
  operation.refused = (choice & 0xFC00) == 0x5400;
  return operation;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static HostilePeer hostile;
  hostile.start_again();
  Input input(data, bytes);
  const auto memory = input.take<uint8_t>();
  hostile.allow_cma(memory % 2 == 1);
  for (uint64_t n = 1; n <= 4 && !input.empty(); ++n) {
    Played operation = operation_of(input, n);
    operation.shared = memory / 2 % 2 == 1;
    play(hostile, operation, [&input] {
      const unsigned changes = input.take<uint8_t>() % 16;
      for (unsigned i = 0; i < changes && !input.empty(); ++i) {
        const size_t at = input.take<uint16_t>() % HostilePeer::kControlled;
        const auto value = static_cast<std::byte>(input.take<uint8_t>());
        hostile.controlled()[at] = value;
      }
    });
  }
  return 0;
}
