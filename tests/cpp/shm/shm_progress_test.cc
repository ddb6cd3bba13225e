#include "transport/shm/peers/shm_progress.h"

#include <chrono>

#include "check.h"
#include "transport/shm/policy/machine.h"

namespace {

using namespace a2a;
using namespace a2a::shm;

// A stand-in for a communicator whose operation never ends.
class Stuck final : public Active {
 public:
  bool beside = false;
  int looks = 0;

  bool advance() override {
    ++looks;
    return false;
  }
  void check(Deadline::Clock::time_point, bool) override {}
  bool beside_peer() override { return beside; }
};

TEST("a rank does not spin while a peer waits for its CPU") {
  ShmProgress progress;
  Stuck stuck;
  const auto never = [] { return false; };
  progress.enter(&stuck);
  CHECK(!progress.wait_briefly(never));
  CHECK(stuck.looks > 50);
  stuck.looks = 0;
  stuck.beside = true;
  CHECK(!progress.wait_briefly(never));
  CHECK_EQ(stuck.looks, 1);
  progress.leave(&stuck);
}

TEST("an oversubscribed rank yields briefly, and not at all for threads or slow polls") {
  const auto looks = [](const Surroundings& surroundings, bool threads, bool slow) {
    ShmProgress progress;
    Stuck stuck;
    progress.enter(&stuck);
    progress.note(surroundings.oversubscribed(), threads, true);
    if (slow) progress.note_slow_looks(false);
    const auto begin = Deadline::Clock::now();
    CHECK(!progress.wait_briefly([] { return false; }));
    CHECK(Deadline::Clock::now() - begin < std::chrono::seconds(1));
    progress.leave(&stuck);
    return stuck.looks;
  };
  CHECK(looks({8, 2}, false, false) > 0);
  CHECK_EQ(looks({8, 2}, true, false), 0);
  CHECK_EQ(looks({2, 2}, true, false), 0);
  CHECK_EQ(looks({8, 2}, false, true), 0);
}

}  // namespace
