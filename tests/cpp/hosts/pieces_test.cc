// Memory with gaps goes over a network packed, a piece at a time.
#include "transport/hosts/pieces.h"

#include "check.h"
#include "hosts.h"

namespace {

using namespace a2a;
using namespace a2a::hosts;

struct Ends {
  std::shared_ptr<hosts_test::Hub> hub = std::make_shared<hosts_test::Hub>(2);
  hosts_test::LoopbackNetwork sender{hub, 0}, receiver{hub, 1};

  // Advances both until both transfers are done. Returns whether they are.
  bool finish(Transfer& out, Transfer& in) {
    bool sent = false, received = false;
    for (int step = 0; step < 1000 && !(sent && received); ++step) {
      sender.advance(), receiver.advance();
      sent = sent || out.done();
      received = received || in.done();
    }
    return sent && received;
  }
};

TEST("bytes arrive whatever the runs of both ends, from one piece to many") {
  check::Random random(check::seed());
  for (const size_t bytes : {size_t{1}, Network::kLarge, 2 * Network::kLarge + 1, 9 * Network::kLarge + 12345}) {
    const check::Note note("bytes", bytes);
    std::vector<std::byte> from(2 * bytes), to(bytes);
    for (std::byte& b : from) b = static_cast<std::byte>(random());
    const std::vector<int64_t> shape{static_cast<int64_t>(bytes)}, step{2};
    const Strides every_second(TensorLayout{shape, step, 1});
    const std::vector<Run> sends{{1, from.data(), bytes, &every_second}};
    const size_t cut = random.in(size_t{1}, bytes);
    std::vector<Run> receives{{0, to.data(), cut}};
    if (cut < bytes) receives.push_back({0, to.data() + cut, bytes - cut});
    Ends ends;
    const auto out = send_in_pieces(ends.sender, 1, 5, sends);
    const auto in = receive_in_pieces(ends.receiver, 0, 5, receives);
    if (!CHECK(ends.finish(*out, *in))) continue;
    for (size_t i = 0; i < bytes; ++i) {
      if (!CHECK(to[i] == from[2 * i])) break;
    }
  }
}

TEST("an abandoned receive begins no further piece and writes nothing") {
  std::vector<std::byte> from(8 * Network::kLarge, std::byte{1}), to(from.size());
  const std::vector<Run> sends{{1, from.data(), from.size()}}, receives{{0, to.data(), to.size()}};
  Ends ends;
  const auto in = receive_in_pieces(ends.receiver, 0, 5, receives);
  in->abandon();
  const auto out = send_in_pieces(ends.sender, 1, 5, sends);
  CHECK(!ends.finish(*out, *in));  // nobody receives what is sent
  CHECK(in->done());
  CHECK(to == std::vector<std::byte>(from.size()));
}

}  // namespace
