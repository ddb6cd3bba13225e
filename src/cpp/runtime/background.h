// A call that may block for long and that nothing can end, made interruptible: a vendor's that waits for peers, a
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

// Runs the call in a thread of its own and waits for its result, as long as `look` does not throw. After that the call
// goes on, because nothing can end it, and `discard` gets what it makes. Both hold what they use.
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
    if (ready(std::chrono::milliseconds(0))) discard(result.get());  // throws instead what the call did
    throw;
  }
  thread.join();
  return result.get();
}

}  // namespace a2a
