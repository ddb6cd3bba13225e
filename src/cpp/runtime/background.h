// Makes calls interruptible that may block for long and that nothing can end: a vendor's call that waits for peers, the
// look-up of a name. Not public.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "a2a/types.h"

namespace a2a {

// Runs `call` in a thread of its own and waits for its result, until `look` throws. Then the call goes on, because
// nothing can end it, and its result goes to `discard`. Requires that both own what they use.
template <class Result>
Result in_background(std::function<Result()> call, std::function<void(Result)> discard,
                     const std::function<void()>& look) {
  struct Shared {
    std::mutex mutex;
    bool abandoned = false;
    std::promise<Result> promise;
  };
  const auto shared = std::make_shared<Shared>();
  auto result = shared->promise.get_future();
  const auto run = [shared, call = std::move(call), discard] {
    try {
      Result made = call();
      const std::lock_guard lock(shared->mutex);
      if (shared->abandoned) return discard(std::move(made));
      shared->promise.set_value(std::move(made));
    } catch (...) {
      shared->promise.set_exception(std::current_exception());
    }
  };
  std::thread thread;
  try {
    thread = std::thread(run);
  } catch (const std::system_error& error) {
    throw Error(Code::backend, std::string("cannot start a thread: ") + error.what());
  }
  const auto ready = [&](std::chrono::milliseconds pause) {
    return result.wait_for(pause) == std::future_status::ready;
  };
  try {
    while (!ready(std::chrono::milliseconds(20))) look();
  } catch (...) {
    thread.detach();
    {
      const std::lock_guard lock(shared->mutex);
      shared->abandoned = true;
    }
    if (ready(std::chrono::milliseconds(0))) discard(result.get());  // throws the error of the call, if it failed
    throw;
  }
  thread.join();
  return result.get();
}

}  // namespace a2a
