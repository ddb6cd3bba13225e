// A thread that looks after operations while the program computes.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

namespace a2a {

// Whether A2A_PROGRESS_THREAD says 1. Throws Error(invalid_argument) when it is neither that nor 0.
bool progress_thread_wanted();

class ProgressThread {
 public:
  // `serve(stop)` does what there is to do and returns when there is nothing, or soon after `stop` holds; `interrupt()`
  // ends whatever it sleeps in. Throws Error(backend) when no thread can be started.
  ProgressThread(std::function<void(const std::atomic<bool>&)> serve, std::function<void()> interrupt);
  // Waits until the thread has ended.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // There is something to do.
  void wake();
  // In a forked child, where the thread does not exist: the destructor has nothing to wait for.
  void forget() { state_.reset(); }

 private:
  struct State;

  std::shared_ptr<State> state_;
  std::function<void()> interrupt_;
};

}  // namespace a2a
