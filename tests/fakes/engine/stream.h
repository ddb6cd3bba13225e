// Streams of a device: what is enqueued runs later, one after the other, in a thread of the stream.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "engine/controls.h"
#include "engine/handles.h"
#include "engine/memory.h"

namespace fake {

class Stream;
class Graph;

// One piece of work. `earlier` is what the stream failed with before, in which case nothing may be done but what others
// wait for. An action that waits looks at stream.stopping() at least every few milliseconds.
using Action = std::function<Failure(const Stream& stream, const Failure& earlier)>;
// Makes the action when it is enqueued: once for ordinary work, at every launch for work that a graph recorded.
using Maker = std::function<Action()>;

// A point in a stream's work.
class Moment {
 public:
  void reach(const Failure& failure);
  // What the stream had failed with there; nothing while it is not reached.
  std::optional<Failure> reached();
  // Waits until it is reached or `stop` says so.
  Failure wait(const std::function<bool()>& stop);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Failure> failure_;
};

class Event {
 public:
  std::mutex mutex;
  std::shared_ptr<Moment> latest;  // of the latest record; null before
  std::weak_ptr<Graph> graph;      // the graph that recorded it, when the stream was being captured
  std::weak_ptr<Stream> captured;
};

// Work recorded from streams in the order it was enqueued, which is an order it may run in.
class Graph {
 public:
  std::mutex mutex;
  std::vector<Maker> work;
  std::set<const Stream*> unjoined;            // streams with work that the first one does not wait for yet
  std::vector<std::weak_ptr<Stream>> streams;  // the first began the capture, the others joined through events
  bool invalid = false;                        // somebody did what a capture forbids
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(int on_device) : device(on_device) {}

  void push(Maker make);
  void push_action(Action action) {
    push([action = std::move(action)] { return action; });
  }
  // `event` is reached when what is enqueued now is done.
  void record(Event& event);
  // What is enqueued from now on starts after the latest record of `event`; false if it was never recorded.
  bool wait(Event& event);

  // What it failed with; not_ready while work is left; for at most this long (no limit: until it is done).
  Failure synchronize(std::optional<Clock::time_point> deadline);
  // Ends what runs, drops what is enqueued, and refuses what comes: only destroying it is left.
  void abort();
  // Lets the thread end after the work that is left.
  void close();
  bool stopping() const { return stopping_; }

  bool begin_capture(std::shared_ptr<Graph> graph);
  std::shared_ptr<Graph> capture();
  void end_capture();

  const int device;

 private:
  void enqueue(Action action);  // under mutex_
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Action> queue_;
  bool running_ = false;  // the first of the queue is being done
  bool started_ = false;  // the thread exists
  bool closed_ = false;
  std::atomic<bool> stopping_{false};
  Failure failure_;  // sticks
  std::shared_ptr<Graph> capture_;
};

// The streams and events of all devices by the handles that programs have.
Handles<Stream>& streams();
Handles<Event>& events();
// The stream of a device that exists without being created.
std::shared_ptr<Stream> default_stream(int device);
// The same for handles of the CUDA driver: 0 and 1 are the device's own stream, 2 is this thread's.
std::shared_ptr<Stream> driver_stream(const void* handle, int device);

// Copies when the stream gets there. Pageable host memory is read before this returns and written before this returns,
// because that is when a program may use it again; then a failure of the stream is returned.
Failure copy_on(Stream& stream, const Region& to, const Region& from);

}  // namespace fake
