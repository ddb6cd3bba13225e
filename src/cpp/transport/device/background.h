// A vendor's call that waits for peers, made interruptible.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

#include "a2a/work.h"

namespace a2a::device {

// Runs the call in a thread of its own and waits for its result. Throws Error(timeout) when the deadline passes and
// Interrupted after a signal; the call then goes on, because nothing can end it, and its result is lost.
template <class Result>
Result in_background(std::function<Result()> call, Deadline deadline, const char* what) {
  std::packaged_task<Result()> task(std::move(call));
  auto result = task.get_future();
  try {
    std::thread(std::move(task)).detach();
  } catch (const std::system_error& error) {
    throw Error(Code::backend, std::string(what) + ": cannot start a thread: " + error.what());
  }
  while (result.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    SignalWatch::look();
    if (deadline.passed()) throw Error(Code::timeout, std::string(what) + ": timed out");
  }
  return result.get();
}

}  // namespace a2a::device
