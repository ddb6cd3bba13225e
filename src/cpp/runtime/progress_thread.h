// A thread that advances operations while the program computes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace a2a {

// What A2A_PROGRESS_THREAD asks for. Throws Error(invalid_argument) for another value.
enum class ThreadWish : uint8_t { automatic, always, never };
ThreadWish progress_thread_wish();

class ProgressThread {
 public:
  // `serve(stop)` advances operations and returns when there are none, or soon after `stop` becomes true; `interrupt()`
  // wakes it from its sleep. Throws Error(backend) when no thread can be started.
  ProgressThread(std::function<void(const std::atomic<bool>&)> serve, std::function<void()> interrupt);
  // Waits until the thread has ended.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // Makes the thread call serve().
  void wake();
  // Call in a forked child, where the thread does not exist: the destructor then does not wait.
  void forget() { state_.reset(); }

 private:
  struct State;

  std::shared_ptr<State> state_;
  std::function<void()> interrupt_;
};

}  // namespace a2a
