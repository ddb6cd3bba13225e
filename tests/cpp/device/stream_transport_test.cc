// The device transport alone, over a fake device, library and host transport that the test controls.
#include "transport/device/stream_transport.h"

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "check.h"

namespace {

using namespace a2a;
using namespace a2a::device;
using std::chrono::milliseconds;

// The calls that the three fakes record for the test, and the results that the test sets for them.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  std::set<Event> alive, reached, failed;
  std::map<Event, void*> recorded;              // event -> stream
  std::vector<std::pair<void*, Event>> orders;  // stream, event
  std::vector<std::vector<void*>> aborts;       // the streams of each call
  std::function<std::shared_ptr<void>()> enqueue = [] { return nullptr; };
  std::optional<std::string> failure;
  std::optional<Error> told;     // the error for the peers
  std::optional<Error> lost;     // the error of a lost peer
  std::optional<Error> against;  // a contradiction
  uintptr_t next = 0x1000;
  int entered = 0, closed = 0;
  int parts = 0;  // the parts of a transport that are not destroyed yet

  void set(const std::function<void()>& change) {
    const std::lock_guard lock(mutex);
    change();
    changed.notify_all();
  }
  template <class Condition>
  bool until(Condition condition) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(10), condition);
  }
  void reach_all() {
    set([this] { reached = alive; });
  }
};

// Each part of a transport has one. Its destruction is the last thing that the part does to the world.
class Presence {
 public:
  explicit Presence(World& world) : w_(world) {
    w_.set([this] { ++w_.parts; });
  }
  ~Presence() {
    w_.set([this] { --w_.parts; });
  }
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

 private:
  World& w_;
};

class TestDevice final : public Device {
 public:
  explicit TestDevice(World& world) : w_(world), presence_(world) {}
  Memory memory() const override { return Memory::npu; }
  int index() const override { return 3; }
  Stream new_stream() override { return {reinterpret_cast<void*>(0x57)}; }
  void delete_stream(Stream) noexcept override {}
  Event new_event() override {
    const std::lock_guard lock(w_.mutex);
    return *w_.alive.insert(reinterpret_cast<void*>(++w_.next)).first;
  }
  void delete_event(Event event) noexcept override {
    w_.set([&] { CHECK_EQ(w_.alive.erase(event), size_t{1}); });
  }
  void record(Event event, Stream stream) override {
    w_.set([&] { w_.recorded[event] = stream.handle, w_.reached.erase(event); });
  }
  bool reached(Event event) override {
    const std::lock_guard lock(w_.mutex);
    if (w_.failed.contains(event)) throw Error(Code::backend, "the driver says no");
    return w_.reached.contains(event);
  }
  void order(Stream stream, Event event) override {
    w_.set([&] { w_.orders.emplace_back(stream.handle, event); });
  }
  bool capturing(Stream stream) override { return stream.handle == reinterpret_cast<void*>(0xC); }
  bool has_default_stream() const override { return false; }

 private:
  void* enter() const override {
    w_.set([this] { ++w_.entered; });
    return nullptr;
  }
  void leave(void*) const noexcept override {
    w_.set([this] { --w_.entered; });
  }
  World& w_;
  Presence presence_;
};

class TestCollectives final : public Collectives {
 public:
  explicit TestCollectives(World& world) : w_(world), presence_(world) {}
  void check(const Batch&) const override { CHECK(w_.entered > 0); }
  std::shared_ptr<void> enqueue(const Batch&, Stream) override { return w_.enqueue(); }
  std::optional<std::string> failure() override {
    const std::lock_guard lock(w_.mutex);
    return w_.failure;
  }
  void abort(std::span<const Stream> busy) noexcept override {
    w_.set([&] {
      CHECK(w_.entered > 0);  // libraries use the current device, and would leave it changed
      w_.aborts.emplace_back();
      for (const Stream stream : busy) w_.aborts.back().push_back(stream.handle);
    });
  }
  void close() override { ++w_.closed; }

 private:
  World& w_;
  Presence presence_;
};

class TestHost final : public Transport {
 public:
  std::shared_ptr<const void> connections() const override { return nullptr; }
  explicit TestHost(World& world) : w_(world), presence_(world) {}
  std::shared_ptr<Work> start(Batch&&) override { return nullptr; }
  std::shared_ptr<a2a::MessageWork> post(const a2a::Message&) override { return nullptr; }
  a2a::Predecessors conflicting(const a2a::Footprint&) override { return {}; }
  void abort(std::string_view) noexcept override {}
  std::optional<Error> pass(const Signature&) override { return std::nullopt; }
  std::optional<Error> contradiction(const Signature&) override { return look(w_.against); }
  std::optional<Error> refusal(const Signature&) override { return std::nullopt; }
  std::optional<Error> broken() override { return look(w_.told); }
  std::optional<Error> lost_peer() override { return look(w_.lost); }
  bool failed() override { return broken().has_value(); }
  bool peer_died() override { return false; }
  void fail(const Error& error) noexcept override {
    w_.set([&] {
      if (!w_.told) w_.told = error;
    });
  }
  std::string whereabouts() override { return "rank 1 somewhere"; }
  std::unique_ptr<Transport> derive(std::span<const a2a::Rank>, a2a::Bootstrap&, Deadline) override { return nullptr; }
  std::unique_ptr<Transport> shrink(std::vector<a2a::Rank>*, Deadline) override { return nullptr; }
  std::string unreceived() override { return ""; }
  void leave(a2a::Left, std::string_view) noexcept override {}
  void await_departure(milliseconds) override {}
  a2a::HostFacts facts() override { return {}; }
  std::vector<a2a::WayOfBytes> ways(size_t) override { return {}; }
  std::shared_ptr<a2a::Exposure> expose(const std::byte*, size_t, a2a::DType, std::span<const int64_t>) override {
    return nullptr;
  }

 private:
  std::optional<Error> look(const std::optional<Error>& error) {
    const std::lock_guard lock(w_.mutex);
    return error;
  }
  World& w_;
  Presence presence_;
};

// A world with a transport of rank 1 in it.
struct Scene : World {
  std::shared_ptr<StreamTransport> transport =
      std::make_shared<StreamTransport>(1, std::make_unique<TestDevice>(*this),
                                        std::make_unique<TestCollectives>(*this), std::make_shared<TestHost>(*this));

  ~Scene() { end(); }
  // Destroys the transport, which the watch may be the last to hold.
  void end() {
    transport.reset();
    CHECK(until([this] { return parts == 0; }));
  }
};

Batch batch_of(uint64_t number, double timeout = 60) {
  Batch batch;
  batch.signature = {Op::alltoallv, Memory::npu, {}, number, 0};
  batch.deadline = Deadline::after_seconds(timeout);
  return batch;
}

const Stream kStream{reinterpret_cast<void*>(0xA)};
using Aborts = std::vector<std::vector<void*>>;
const std::vector<void*> kOnStream{kStream.handle};

// A call of the library that blocks until the test lets it go on.
struct Gate {
  explicit Gate(World& world) : w(world) {
    w.enqueue = [this]() -> std::shared_ptr<void> {
      w.set([this] { inside = true; });
      w.until([this] { return open; });
      return nullptr;
    };
  }
  World& w;
  bool inside = false, open = false;
};

std::shared_ptr<Work> start(Scene& world, Batch batch, Stream callers) {
  const bool recorded = world.transport->check(batch, callers);
  return world.transport->start(std::move(batch), callers, recorded);
}

bool throws_with(Code code, const std::string& part, const std::function<void()>& body) {
  return check::throws(code, part, part, body);
}

}  // namespace

TEST("an operation is done when its event is reached, and lets go of what the library holds") {
  Scene world;
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> holds = held;
  world.enqueue = [&]() -> std::shared_ptr<void> { return std::exchange(held, nullptr); };
  {
    const auto work = start(world, batch_of(1), kStream);
    CHECK(!work->done() && !holds.expired());
    CHECK(!work->wait_until(Deadline::after_seconds(0.01)));
    world.reach_all();
    CHECK(work->wait_until(Deadline::after_seconds(10)));
    CHECK(holds.expired());
  }
  world.transport->drain(Deadline::after_seconds(10));
  world.transport->close();
  CHECK_EQ(world.closed, 1);
  CHECK_THROWS(Code::aborted, "the communicator is closed", start(world, batch_of(2), kStream));
  world.end();
  CHECK(world.alive.empty() && world.entered == 0 && world.aborts.empty());
}

TEST("what the device is past is let go of when the next operation starts, or a later one is seen to be done") {
  Scene world;
  for (uint64_t number = 1; number < 100; number += 3) {  // the watch alone would notice only a few of them in time
    const auto first = start(world, batch_of(number), kStream);
    CHECK(!first->let_go());
    world.reach_all();
    const auto second = start(world, batch_of(number + 1), kStream);
    CHECK(first->let_go() && !second->let_go());
    const auto third = start(world, batch_of(number + 2), kStream);
    world.reach_all();
    CHECK(third->done() && second->let_go());
  }
  CHECK(world.alive.size() <= 2);  // events
}

TEST("a stream of the transport's own waits for the caller's, if there is one") {
  Scene world;
  Batch batch = batch_of(1);
  batch.asynchronous = true;
  const auto work = start(world, std::move(batch), kStream);
  CHECK_EQ(world.orders.size(), size_t{1});
  CHECK(world.orders[0].first == reinterpret_cast<void*>(0x57));
  work->order_before({reinterpret_cast<void*>(0xB)});
  CHECK(world.orders[1].first == reinterpret_cast<void*>(0xB));
  CHECK(world.recorded[world.orders[1].second] == reinterpret_cast<void*>(0x57));
  const auto next = start(world, batch_of(2), {});
  CHECK_EQ(world.orders.size(), size_t{2});
  world.reach_all();
  work->wait(), next->wait();
}

TEST("a stream that records a graph: nothing is watched") {
  Scene world;
  const auto work = start(world, batch_of(1), {reinterpret_cast<void*>(0xC)});
  CHECK(work->done() && world.recorded.empty());
}

TEST("ended by another thread while the library blocks: it is ended once more when the call comes back") {
  Scene world;
  Gate gate(world);
  std::jthread caller([&] {
    throws_with(Code::aborted, "the communicator is broken: rank 1 aborted: enough",
                [&] { start(world, batch_of(1), kStream); });
    CHECK_EQ(world.aborts, (Aborts{kOnStream, kOnStream}));
  });
  CHECK(world.until([&] { return gate.inside; }));
  world.transport->abort("enough");
  CHECK_EQ(std::string(world.told->what()), std::string("rank 1 aborted: enough"));
  CHECK_EQ(world.aborts, Aborts{kOnStream});
  world.set([&] { gate.open = true; });
  caller.join();
  CHECK(world.recorded.empty());
}

TEST("a deadline that passes while the library blocks is told to the peers at once") {
  Scene world;
  Gate gate(world);
  std::jthread caller([&] {
    throws_with(Code::timeout, "alltoallv #1: timeout on rank 1 (npu:3); peers: rank 1 somewhere",
                [&] { start(world, batch_of(1, 0.05), kStream); });
  });
  CHECK(world.until([&] { return world.told.has_value(); }));
  world.set([&] { gate.open = true; });
}

TEST("whatever the library throws breaks the communicator, and ends what was enqueued") {
  const std::vector<std::pair<std::function<void()>, Code>> cases = {
      {[] { throw Error(Code::backend, "the library says no"); }, Code::backend},
      {[] { throw std::runtime_error("something else"); }, Code::backend},
      {[] { throw Interrupted(); }, Code::aborted}};
  for (const auto& [fault, code] : cases) {
    Scene world;
    const auto before = start(world, batch_of(1), {reinterpret_cast<void*>(0xB)});
    world.enqueue = [&]() -> std::shared_ptr<void> {
      fault();
      return nullptr;
    };
    throws_with(code, "", [&] { start(world, batch_of(2), kStream); });
    CHECK(world.told && std::string(world.told->what()).starts_with("alltoallv #2 on rank 1 (npu:3): "));
    CHECK(world.aborts.at(0) == (std::vector{reinterpret_cast<void*>(0xB), kStream.handle}));
    throws_with(code, "alltoallv #2 on rank 1", [&] { before->wait(); });
    throws_with(code, "alltoallv #3: the communicator is broken", [&] { start(world, batch_of(3), kStream); });
  }
}

TEST("an event that the driver cannot answer for breaks the communicator") {
  Scene world;
  const auto work = start(world, batch_of(1), kStream);
  world.set([&] { world.failed = world.alive; });
  throws_with(Code::backend, "rank 1 (npu:3): the driver says no", [&] { work->wait(Deadline::after_seconds(10)); });
  CHECK(world.told.has_value());
}

TEST("what a peer contradicts, or breaks, ends the operation") {
  for (const bool broken : {false, true}) {
    Scene world;
    const auto work = start(world, batch_of(1), kStream);
    world.set([&] { (broken ? world.told : world.against).emplace(Code::mismatch, "rank 0 says no"); });
    throws_with(Code::mismatch, "rank 0 says no", [&] { work->wait(Deadline::after_seconds(10)); });
    CHECK_EQ(world.aborts, Aborts{kOnStream});
  }
}

TEST("a compared operation is not asked about again") {
  Scene world;
  world.against.emplace(Code::mismatch, "the next operation in that slot");
  Batch batch = batch_of(1);
  batch.way = Way::compare;
  const auto work = start(world, std::move(batch), kStream);
  std::this_thread::sleep_for(milliseconds(30));
  CHECK(!work->done());
  world.reach_all();
  work->wait();
}

TEST("a peer that leaves when its part is done has not failed this rank") {
  for (int i = 0; i < 3; ++i) {
    Scene world;
    const auto work = start(world, batch_of(1), kStream);
    world.set([&] {
      world.lost.emplace(Code::peer_lost, "rank 0 is gone");
      world.failure = "a peer is gone";
    });
    std::this_thread::sleep_for(milliseconds(7));  // the watch notices that
    world.reach_all();
    work->wait();
    const auto next = start(world, batch_of(2), kStream);
    throws_with(Code::peer_lost, "alltoallv #2: rank 0 is gone", [&] { next->wait(Deadline::after_seconds(10)); });
  }
}

TEST("what the library reports for a moment, and takes back, is nothing") {
  Scene world;
  const auto work = start(world, batch_of(1), kStream);
  for (int i = 0; i < 10; ++i) {
    world.set([&] { world.failure = "a hiccup"; });
    std::this_thread::sleep_for(milliseconds(15));
    world.set([&] { world.failure.reset(); });
    std::this_thread::sleep_for(milliseconds(15));
  }
  CHECK(!work->done() && !world.told);
  world.set([&] { world.failure = "the end"; });
  throws_with(Code::backend, "alltoallv #1 on rank 1 (npu:3): the end",
              [&] { work->wait(Deadline::after_seconds(10)); });
}

TEST("nobody hears of an end before the device is past what was ended") {
  Scene world;
  const auto work = start(world, batch_of(1), kStream);
  std::atomic<bool> past{false};
  std::jthread device([&] {
    CHECK(world.until([&] { return !world.aborts.empty(); }));
    std::this_thread::sleep_for(milliseconds(5));  // much less than the transport's patience, for loaded machines
    past = true;
    world.reach_all();
  });
  throws_with(Code::aborted, "enough", [&] {
    std::jthread other([&] { world.transport->abort("enough"); });
    work->wait(Deadline::after_seconds(10));
  });
  CHECK(past);
}

TEST("... and a device that does not get past what was ended is not waited for") {
  Scene stuck;
  const auto work = start(stuck, batch_of(1), kStream);
  stuck.transport->abort("enough");
  CHECK_THROWS(Code::aborted, "enough", work->wait());
}

TEST("letting go ends what is in flight without a word to the peers") {
  Scene world;
  const auto work = start(world, batch_of(1), kStream);
  world.transport->let_go();
  throws_with(Code::aborted, "rank 1 has let go of this communicator", [&] { work->wait(); });
  CHECK(!world.told);
  throws_with(Code::aborted, "has let go", [&] { start(world, batch_of(2), kStream); });
  throws_with(Code::aborted, "has let go", [&] { work->order_before(kStream); });
}

TEST("drain gives up at its deadline") {
  Scene world;
  const auto work = start(world, batch_of(7), kStream);
  CHECK_THROWS(Code::timeout, "close: alltoallv #7 is not done", world.transport->drain(Deadline::after_seconds(0.05)));
  world.transport->let_go();
}

TEST("a work holds its transport, and the transport nothing that is done") {
  Scene world;
  auto work = start(world, batch_of(1), kStream);
  world.reach_all();
  work->wait();
  world.transport->close();
  const std::weak_ptr<StreamTransport> held = world.transport;
  world.transport.reset();
  CHECK(work->done() && !held.expired());
  work.reset();
  CHECK(world.until([&] { return world.alive.empty(); }));
}
