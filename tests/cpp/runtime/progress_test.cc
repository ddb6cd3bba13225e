// How a rank waits: which transports it advances, and when it looks, sleeps and gives up.
#include "runtime/progress.h"

#include <chrono>
#include <functional>

#include "check.h"

namespace {

using namespace a2a;
using namespace std::chrono_literals;

// Has no doorbell: a sleep only notes that there was one.
class TestProgress final : public Progress {
 public:
  int sleeps = 0, announced = 0;
  std::chrono::nanoseconds slice{};
  int events = -1;
  std::function<void()> during_sleep;  // what another thread does meanwhile
  bool signal = false;                 // arrives in the sleep

 private:
  void announce_cpu() override { ++announced; }
  void ring_own() override {}
  Woken sleep_unless(const std::function<bool()>& news, const std::function<Nap()>& nap) override {
    if (news()) return Woken::otherwise;
    ++sleeps;
    const Nap chosen = nap();
    slice = chosen.longest;
    events = chosen.events;
    if (during_sleep) during_sleep();
    return signal ? Woken::by_signal : events >= 0 ? Woken::by_events : Woken::otherwise;
  }
};

struct TestTransport final : Active {
  explicit TestTransport(Progress& progress) : progress(progress) {
    std::lock_guard lock(progress.mutex());
    progress.enter(this);
  }
  ~TestTransport() override {
    std::lock_guard lock(progress.mutex());
    progress.leave(this);
  }
  bool advance() override { return ++advanced <= moves; }
  void check(Deadline::Clock::time_point, bool ask_kernel) override { ++checked, asked += ask_kernel; }
  bool must_look() override { return looks; }
  int events() override { return descriptor; }

  Progress& progress;
  int advanced = 0, moves = 0, checked = 0, asked = 0;
  bool looks = false;
  int descriptor = -1;
};

TEST("a wait advances every transport, until its condition is true") {
  TestProgress progress;
  TestTransport first(progress), second(progress);
  first.moves = second.moves = 10;
  CHECK(progress.wait([&] { return first.advanced >= 5; }, Deadline::never()));
  CHECK_EQ(first.advanced, 5);
  CHECK_EQ(second.advanced, 5);
  CHECK_EQ(progress.announced, 1);
  CHECK_EQ(progress.sleeps, 0);
}

TEST("a wait in which nothing moves sleeps, and checks deadlines and peers") {
  TestProgress progress;
  TestTransport transport(progress);
  CHECK(progress.wait([&] { return progress.sleeps == 3; }, Deadline::never()));
  CHECK(transport.checked > 0 && transport.asked > 0);
  CHECK(progress.slice == 10ms);
}

TEST("a transport that waits for events without a ring shortens the sleep") {
  TestProgress progress;
  TestTransport transport(progress);
  transport.looks = true;
  CHECK(progress.wait([&] { return progress.sleeps == 1; }, Deadline::never()));
  CHECK(progress.slice == 50us);
}

TEST("a transport with a descriptor has a rank sleep on it, for a part of its wait, but not twice in vain") {
  TestProgress progress;
  TestTransport transport(progress);
  transport.looks = true;
  transport.descriptor = 5;
  CHECK(progress.wait([&] { return progress.sleeps == 1; }, Deadline::never()));
  CHECK(progress.events == 5 && progress.slice >= 50us && progress.slice < 2ms);
  CHECK(progress.wait([&] { return progress.sleeps == 3; }, Deadline::never()));
  CHECK(progress.events == -1 && progress.slice == 50us);  // the sleep before was ended by events, and nothing moved
  TestTransport other(progress);
  other.looks = true;
  other.descriptor = 6;
  CHECK(progress.wait([&] { return progress.sleeps == 4; }, Deadline::never()));
  CHECK(progress.events == -1 && progress.slice == 50us);
}

TEST("a sleep ends at the deadline, and a wait with it") {
  TestProgress progress;
  TestTransport transport(progress);
  CHECK(!progress.wait([] { return false; }, Deadline::after_seconds(0.004)));
  CHECK(progress.sleeps == 0 || progress.slice <= 4ms);
}

TEST("a wait in slices sleeps at once in the second") {
  TestProgress progress;
  TestTransport transport(progress);
  CHECK(!progress.wait([&] { return progress.sleeps > 0; }, Deadline::after_seconds(0)));
  progress.signal = true;
  CHECK(!progress.wait([] { return false; }, Deadline::never()));
  const int looks = transport.advanced;
  CHECK(!progress.wait([] { return false; }, Deadline::never()));
  CHECK_EQ(progress.sleeps, 2);
  CHECK_EQ(transport.advanced - looks, 2);  // at the beginning, and before it sleeps
}

TEST("a signal ends a wait; data that came before the sleep prevents it") {
  TestProgress progress;
  TestTransport transport(progress);
  progress.signal = true;
  CHECK(!progress.wait([] { return false; }, Deadline::never()));
  CHECK_EQ(progress.sleeps, 1);
  int asked = 0;
  CHECK(progress.wait([&] { return ++asked > 1 && progress.sleeps == 1; }, Deadline::never()));
  CHECK_EQ(progress.sleeps, 1);
}

TEST("a short wait returns where ranks share an interpreter's lock or a poll is slow") {
  TestProgress progress;
  TestTransport transport(progress);
  CHECK(progress.wait_briefly([&] { return transport.advanced == 2; }));
  CHECK(!progress.wait_briefly([] { return false; }));
  progress.note(true, false, true);
  CHECK(progress.crowded() && progress.may_linger());
  progress.note(false, true, true);
  CHECK(progress.crowded() && !progress.may_linger());
  CHECK(!progress.wait_briefly([] { return true; }));
  TestProgress other;
  other.note_slow_looks(false);
  CHECK(!other.may_linger() && !other.crowded());
}

TEST("a transport that has left is advanced no more") {
  TestProgress progress;
  TestTransport stays(progress);
  int advanced = 0;
  {
    TestTransport leaves(progress);
    progress.poll();
    advanced = leaves.advanced;
  }
  progress.poll();
  CHECK_EQ(advanced, 1);
  CHECK_EQ(stays.advanced, 2);
}

}  // namespace
