#include "transport/device/stream_transport.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "core/facts.h"
#include "transport/device/watch.h"

namespace a2a::device {
namespace {

using Clock = Deadline::Clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// A peer that exits right after its own part is done has not failed this rank, even if the vendor's library reports it:
// its last bytes may still be under way.
constexpr auto kGrace = milliseconds(100);

// Sleeps longer each time. next() returns false when a signal ended the sleep.
class Pauses {
 public:
  bool next() {
    if (Clock::now() - start_ < microseconds(50)) return true;
    const timespec length{0, pause_};
    pause_ = std::min<long>(2 * pause_, 1'000'000);
    return clock_nanosleep(CLOCK_MONOTONIC, 0, &length, nullptr) != EINTR;
  }

 private:
  Clock::time_point start_ = Clock::now();
  long pause_ = 20'000;  // nanoseconds
};

}  // namespace

// ---- the work -----------------------------------------------------------------------------------------------------

DeviceWork::DeviceWork(std::shared_ptr<StreamTransport> transport, const Batch& batch)
    : transport_(std::move(transport)),
      signature_(batch.signature),
      deadline_(batch.deadline),
      compared_(batch.way == Way::compare) {}

bool DeviceWork::done() {
  transport_->refuse_if_inherited();
  return finished_.load(std::memory_order_acquire) || transport_->look(*this);
}

bool DeviceWork::wait_until(Deadline deadline) {
  Pauses pauses;
  while (!done()) {
    if (deadline.passed() || !pauses.next()) return false;
  }
  if (error_) throw *error_;
  return true;
}

void DeviceWork::order_before(Stream stream) {
  transport_->refuse_if_inherited();
  transport_->order_before(*this, stream);
}

// ---- the transport ------------------------------------------------------------------------------------------------

StreamTransport::StreamTransport(Rank rank, std::unique_ptr<Device> device, std::unique_ptr<Collectives> collectives,
                                 std::shared_ptr<Transport> host)
    : rank_(rank), device_(std::move(device)), collectives_(std::move(collectives)), host_(std::move(host)) {}

StreamTransport::~StreamTransport() {
  if (inherited()) {  // drivers do not survive a fork, and the parent owns the device's state
    (void)device_.release();
    (void)collectives_.release();
    return;
  }
  if (!broken_) stop({});
  try {
    const Device::Current current(*device_);
    for (const auto& work : flights_) {
      if (work->event_ != nullptr) device_->delete_event(work->event_);
    }
    for (Event event : free_events_) device_->delete_event(event);
    if (own_stream_.handle != nullptr) device_->delete_stream(own_stream_);
  } catch (const Error&) {
    // The driver has shut down already, and freed everything.
  }
}

bool StreamTransport::inherited() const { return home_.inherited(); }

void StreamTransport::refuse_if_inherited() const {
  if (!inherited()) return;
  throw Error(Code::aborted, "this operation was started before fork(): it belongs to the parent process");
}

bool StreamTransport::check(const Batch& batch, Stream stream) const {
  const Device::Current current(*device_);
  collectives_->check(batch);
  return device_->capturing(stream);
}

std::shared_ptr<Work> StreamTransport::start(Batch&& batch, Stream callers, bool recorded) {
  if (ended_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex_);
    throw_if_broken(batch.signature);
  }
  const auto work = std::make_shared<DeviceWork>(shared_from_this(), batch);
  const auto named = [&](const char* text) { return name_of(batch.signature) + " on " + where() + ": " + text; };
  std::shared_ptr<void> held;
  std::optional<Error> failure;
  work->stream_ = callers;
  try {
    const Device::Current current(*device_);
    if (recorded) {
      collectives_->capturing();
      collectives_->enqueue(batch, callers);
      work->finished_.store(true, std::memory_order_release);
      return work;
    }
    work->stream_ = choose_stream(batch, callers);
    board(work);
    held = collectives_->enqueue(batch, work->stream_);
    if (enqueued(*work, held)) return work;
  } catch (const Interrupted& error) {
    fail(Error(error.code(), named(error.what())));
    stop({&work->stream_, 1});
    throw;
  } catch (const std::exception& error) {
    const auto* const own = dynamic_cast<const Error*>(&error);
    failure.emplace(cause_of(Error(own != nullptr ? own->code() : Code::backend, named(error.what()))));
  }
  const bool cause = failure && end(*failure, true);
  // Once more: another thread may have ended all operations before this one was enqueued.
  stop({&work->stream_, 1});
  if (cause) throw *failure;
  const std::lock_guard lock(mutex_);
  throw_if_broken(batch.signature);
  return work;
}

// Returns the cause of a failure of the vendor's library. The library may report a peer's end before the host transport
// does.
Error StreamTransport::cause_of(const Error& error) {
  if (error.code() != Code::backend) return error;
  const auto until = Clock::now() + kGrace;
  do {
    const auto lost = host_->lost_peer();
    if (const auto broken = host_->broken()) return *broken;
    if (lost) return *lost;
    std::this_thread::sleep_for(milliseconds(1));
  } while (Clock::now() < until);
  return error;
}

// Puts the operation under the watch, which enforces its deadline and ends it with the communicator, even while the
// vendor's library blocks.
void StreamTransport::board(const std::shared_ptr<DeviceWork>& work) {
  bool unwatched = false;
  {
    const std::lock_guard lock(mutex_);
    flights_.push_back(work);
    unwatched = !std::exchange(watched_, true);
  }
  if (unwatched) watch(shared_from_this());
}

// Records the operation's event. Returns false when another thread has ended all operations meanwhile.
bool StreamTransport::enqueued(DeviceWork& work, const std::shared_ptr<void>& held) {
  const std::lock_guard lock(mutex_);
  if (broken_) return false;
  try {
    reap();
  } catch (const Error&) {
    // The watch gets the same error, and may end everything.
  }
  work.held_ = held;
  work.event_ = take_event();
  device_->record(work.event_, work.stream_);
  return true;
}

Stream StreamTransport::choose_stream(const Batch& batch, Stream callers) {
  const bool none = callers.handle == nullptr && !device_->has_default_stream();
  if (!batch.asynchronous && !none) return callers;
  if (own_stream_.handle == nullptr) own_stream_ = device_->new_stream();
  if (!none) {
    const std::lock_guard lock(mutex_);
    const Event before = take_event();
    free_events_.push_back(before);  // may be recorded again at once: the order below refers to this record
    device_->record(before, callers);
    device_->order(own_stream_, before);
  }
  return own_stream_;
}

void StreamTransport::order_before(DeviceWork& work, Stream stream) {
  const std::lock_guard lock(mutex_);
  const Device::Current current(*device_);
  if (!reached(work)) return device_->order(stream, work.event_);
  if (work.error_) throw *work.error_;
}

bool StreamTransport::look(DeviceWork& work) {
  const std::lock_guard lock(mutex_);
  try {
    const Device::Current current(*device_);
    if (!reached(work)) return false;
    reap();
    return true;
  } catch (const Error&) {
    return false;  // the watch gets the same error, and may end everything
  }
}

bool StreamTransport::reached(DeviceWork& work) {
  if (work.finished_.load(std::memory_order_acquire)) return true;
  if (broken_) return false;                 // end() finishes the work, once the device no longer uses the memory
  if (work.event_ == nullptr) return false;  // still being enqueued
  if (!device_->reached(work.event_)) return false;
  finish(work);
  return true;
}

// Finishes the operations that the device has done, up to the first that it has not.
void StreamTransport::reap() {
  while (!flights_.empty() && reached(*flights_.front())) flights_.pop_front();
}

void StreamTransport::finish(DeviceWork& work) {
  if (work.event_ != nullptr) free_events_.push_back(std::exchange(work.event_, nullptr));
  work.held_.reset();
  work.finished_.store(true, std::memory_order_release);
}

Event StreamTransport::take_event() {
  if (free_events_.empty()) return device_->new_event();
  const Event event = free_events_.back();
  free_events_.pop_back();
  return event;
}

void StreamTransport::throw_if_broken(const Signature& signature) const {
  if (!broken_) return;
  throw Error(broken_->code(), name_of(signature) + ": the communicator is broken: " + broken_->what());
}

// ---- failures -----------------------------------------------------------------------------------------------------

bool StreamTransport::tend() noexcept {
  std::optional<Error> error;
  try {
    const std::lock_guard lock(mutex_);
    const Device::Current current(*device_);
    std::erase_if(flights_, [this](const auto& work) { return reached(*work); });
    if (flights_.empty() || broken_) return watched_ = false;
    error = trouble();
  } catch (const std::exception& problem) {
    error.emplace(Code::backend, where() + ": " + problem.what());
  }
  if (!error) return true;
  fail(*error);
  return false;
}

// Returns why the operations in flight will never be done, if so.
std::optional<Error> StreamTransport::trouble() {
  const DeviceWork& first = *flights_.front();
  const auto lost = host_->lost_peer();
  if (auto error = host_->broken()) return error;
  for (const auto& work : flights_) {
    if (!work->compared_) {
      if (auto error = host_->contradiction(work->signature_)) return error;
    }
    if (work->deadline_.passed()) {
      return Error(Code::timeout, name_of(work->signature_) + ": timeout on " + where() +
                                      "; peers: " + host_->whereabouts() + advice_on_timeout());
    }
  }
  auto failure = collectives_->failure();
  if (!failure) failure = device_->failure(first.stream_);
  if (!lost && !failure) {
    trouble_since_.reset();
    return std::nullopt;
  }
  if (!trouble_since_) trouble_since_ = Clock::now();
  if (Clock::now() - *trouble_since_ < kGrace) return std::nullopt;
  const std::string name = name_of(first.signature_);
  if (lost) return Error(Code::peer_lost, name + ": " + lost->what());  // the cause of the library's report
  return Error(Code::backend, name + " on " + where() + ": " + *failure);
}

// Ends all operations. Returns false if that was done before. The order matters: no caller may get the error while the
// device can still access the memory of an operation.
bool StreamTransport::end(const Error& error, bool tell_peers) noexcept {
  std::vector<Stream> busy;
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return false;
    broken_.emplace(error);
    ended_.store(true, std::memory_order_release);
    for (const auto& work : flights_) {
      const auto same = [&](Stream stream) { return stream.handle == work->stream_.handle; };
      if (std::ranges::none_of(busy, same)) busy.push_back(work->stream_);
    }
  }
  if (tell_peers) host_->fail(error);  // first, so that the peers get the cause before its consequences
  stop(busy);
  const std::lock_guard lock(mutex_);
  for (const auto& work : flights_) {
    if (work->finished_.load(std::memory_order_acquire)) continue;
    work->error_.emplace(error);
    finish(*work);
  }
  flights_.clear();
  return true;
}

// Stops the operations. Not all libraries wait until the device has stopped. A stream with other work is not waited
// for.
void StreamTransport::stop(std::span<const Stream> busy) noexcept {
  std::optional<Device::Current> current;
  try {
    current.emplace(*device_);
  } catch (const Error&) {
    // The driver has shut down already.
  }
  collectives_->abort(busy);
  const auto until = Clock::now() + kGrace;
  while (!quiet() && Clock::now() < until) std::this_thread::sleep_for(milliseconds(1));
}

// Whether the device has done all operations in flight.
bool StreamTransport::quiet() noexcept {
  const std::lock_guard lock(mutex_);
  try {
    return std::ranges::all_of(
        flights_, [this](const auto& work) { return work->event_ == nullptr || device_->reached(work->event_); });
  } catch (const Error&) {
    return true;  // the stream does nothing more
  }
}

void StreamTransport::abort(std::string_view reason) noexcept {
  fail(Error(Code::aborted, "rank " + std::to_string(rank_) + " aborted: " + std::string(reason)));
}

void StreamTransport::let_go() noexcept {
  end(Error(Code::aborted, "rank " + std::to_string(rank_) + " has let go of this communicator"), false);
}

void StreamTransport::drain(Deadline deadline) {
  for (;;) {
    std::shared_ptr<DeviceWork> first;
    {
      const std::lock_guard lock(mutex_);
      if (broken_ || flights_.empty()) return;
      first = flights_.front();
    }
    while (!first->done()) {
      if (deadline.passed()) throw Error(Code::timeout, "close: " + name_of(first->signature_) + " is not done");
      std::this_thread::sleep_for(microseconds(50));
    }
    const std::lock_guard lock(mutex_);
    if (!flights_.empty() && flights_.front() == first) flights_.pop_front();
  }
}

void StreamTransport::close() {
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return;
    broken_.emplace(Code::aborted, "the communicator is closed");
    ended_.store(true, std::memory_order_release);
  }
  const Device::Current current(*device_);
  collectives_->close();
}

}  // namespace a2a::device
