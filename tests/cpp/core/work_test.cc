// Waits: deadlines, and signals that end them.
#include "a2a/work.h"

#include "check.h"

namespace {

using namespace a2a;

// Is finished after so many waits.
class Slow final : public Work {
 public:
  explicit Slow(int waits) : left(waits) {}
  bool done() override { return left == 0; }
  bool wait_until(Deadline until) override {
    longest = std::max(longest, until.when());
    if (left > 0) --left;
    return done();
  }
  int left;
  Deadline::Clock::time_point longest{};
};

int asked = 0;
bool never() { return ++asked, false; }
bool at_once() { return ++asked, true; }

TEST("a wait goes on until the operation is finished") {
  Slow slow(3);
  slow.wait();
  CHECK(slow.done());
  CHECK(slow.longest == Deadline::Clock::time_point::max());
}

TEST("a wait whose deadline has passed raises, and the operation goes on") {
  Slow slow(2);
  CHECK_THROWS(Code::timeout, "the operation goes on", slow.wait(Deadline::after_seconds(0)));
  CHECK_EQ(slow.left, 1);
  slow.wait();
}

TEST("a watch is asked between short waits, and may end the call") {
  Slow slow(3);
  asked = 0;
  {
    const SignalWatch watch(never);
    slow.wait();
    CHECK_EQ(asked, 2);
    CHECK(slow.longest < Deadline::Clock::now() + std::chrono::seconds(1));
    const SignalWatch inner(at_once);
    Slow other(3);
    CHECK_THROWS(Code::aborted, "interrupted by a signal", other.wait());
    CHECK_EQ(other.left, 2);
  }
  asked = 0;
  SignalWatch::look();
  CHECK_EQ(asked, 0);
}

TEST("the defaults of Work describe the whole operation") {
  Slow slow(1);
  CHECK(!slow.arrived(0) && !slow.let_go() && slow.source() == -1 && !slow.wait_briefly());
  slow.order_before({});
  CHECK(slow.arrived(0) && slow.let_go());
}

}  // namespace
