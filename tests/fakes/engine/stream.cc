#include "engine/stream.h"

#include <cstring>
#include <map>
#include <thread>

namespace fake {

void Moment::reach(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  failure_ = failure;
  changed_.notify_all();
}

std::optional<Failure> Moment::reached() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

Failure Moment::wait(const std::function<bool()>& stop) {
  std::unique_lock lock(mutex_);
  while (!failure_) {
    if (stop()) return {Failure::aborted, "the wait for an event was aborted"};
    changed_.wait_for(lock, std::chrono::milliseconds(5));
  }
  return *failure_;
}

void Stream::push(Maker make) {
  const std::lock_guard lock(mutex_);
  if (!capture_) return enqueue(make());
  const std::lock_guard graph_lock(capture_->mutex);
  capture_->work.push_back(std::move(make));
  capture_->unjoined.insert(this);
}

void Stream::enqueue(Action action) {
  queue_.push_back(std::move(action));
  changed_.notify_all();
  if (started_) return;
  started_ = true;
  std::thread([self = shared_from_this()] { self->work(); }).detach();
}

void Stream::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !queue_.empty() || closed_; });
    if (queue_.empty()) return;
    Action action = std::move(queue_.front());
    queue_.pop_front();
    running_ = true;
    const Failure earlier = failure_;
    lock.unlock();
    Failure failure = action(*this, earlier);
    action = nullptr;  // lets go of its memory before anybody learns that it is done
    lock.lock();
    running_ = false;
    if (!failure_) failure_ = std::move(failure);
    changed_.notify_all();
  }
}

void Stream::record(Event& event) {
  auto moment = std::make_shared<Moment>();
  const auto graph = capture();
  {
    const std::lock_guard lock(event.mutex);
    event.latest = graph ? nullptr : moment;
    event.graph = graph;
    event.captured = graph ? weak_from_this() : std::weak_ptr<Stream>();
  }
  if (graph) return;  // recorded work runs in the order it was enqueued: events have nothing to add
  push_action([moment](const Stream&, const Failure& earlier) {
    moment->reach(earlier);
    return earlier;
  });
}

bool Stream::wait(Event& event) {
  std::unique_lock event_lock(event.mutex);
  const auto moment = event.latest;
  const auto graph = event.graph.lock();
  const auto captured = event.captured.lock();
  event_lock.unlock();
  if (graph) {
    begin_capture(graph);  // the work of this stream belongs to the graph from here on
    const std::lock_guard lock(graph->mutex);
    if (captured.get() != this) graph->unjoined.erase(captured.get());
    return true;
  }
  if (!moment) return false;
  push_action([moment](const Stream& stream, const Failure& earlier) {
    return earlier ? earlier : moment->wait([&] { return stream.stopping(); });
  });
  return true;
}

Failure Stream::synchronize(std::optional<Clock::time_point> deadline) {
  std::unique_lock lock(mutex_);
  const auto idle = [&] { return queue_.empty() && !running_; };
  if (!deadline) {
    changed_.wait(lock, idle);
  } else if (!changed_.wait_until(lock, *deadline, idle)) {
    return {Failure::not_ready, "work is left on the stream"};
  }
  return failure_;
}

void Stream::abort() {
  stopping_ = true;
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = {Failure::aborted, "the stream was aborted"};
}

void Stream::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

bool Stream::begin_capture(std::shared_ptr<Graph> graph) {
  const std::lock_guard lock(mutex_);
  if (capture_ == graph) return true;
  if (capture_) return false;
  const std::lock_guard graph_lock(graph->mutex);
  graph->streams.push_back(weak_from_this());
  capture_ = std::move(graph);
  return true;
}

std::shared_ptr<Graph> Stream::capture() {
  const std::lock_guard lock(mutex_);
  return capture_;
}

void Stream::end_capture() {
  const std::lock_guard lock(mutex_);
  capture_ = nullptr;
}

Handles<Stream>& streams() {
  static auto* const it = new Handles<Stream>(0x5eed'0000'0000);
  return *it;
}

Handles<Event>& events() {
  static auto* const it = new Handles<Event>(0xe4e7'0000'0000);
  return *it;
}

std::shared_ptr<Stream> default_stream(int device) {
  static auto* const mutex = new std::mutex;
  static auto* const all = new std::map<int, std::shared_ptr<Stream>>;
  const std::lock_guard lock(*mutex);
  auto& stream = (*all)[device];
  if (!stream) stream = std::make_shared<Stream>(device);
  return stream;
}

std::shared_ptr<Stream> driver_stream(const void* handle, int device) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  if (number > 2) return streams().find(handle);
  if (number < 2) return default_stream(device);
  thread_local std::map<int, std::shared_ptr<Stream>> own;
  auto& stream = own[device];
  if (!stream) stream = std::make_shared<Stream>(device);
  return stream;
}

Failure copy_on(Stream& stream, const Region& to, const Region& from) {
  if (to.bytes == 0) return {};
  std::shared_ptr<std::vector<std::byte>> staged;
  if (!from.owner) staged = std::make_shared<std::vector<std::byte>>(from.data, from.data + from.bytes);
  stream.push_action([to, from, staged](const Stream&, const Failure& earlier) {
    if (earlier) return earlier;
    delay();
    std::memmove(to.data, staged ? staged->data() : from.data, to.bytes);
    return Failure{};
  });
  return to.owner || stream.capture() ? Failure{} : stream.synchronize(std::nullopt);
}

}  // namespace fake
