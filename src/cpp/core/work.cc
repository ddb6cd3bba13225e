#include "a2a/work.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace a2a {
namespace {

thread_local SignalWatch::Interrupted interrupted = nullptr;

}  // namespace

SignalWatch::SignalWatch(Interrupted asked) : before_(std::exchange(interrupted, asked)) {}

SignalWatch::~SignalWatch() { interrupted = before_; }

void SignalWatch::look() {
  if (interrupted != nullptr && interrupted()) throw a2a::Interrupted();
}

void Work::wait(Deadline deadline) {
  constexpr auto kSlice = std::chrono::milliseconds(50);  // for signals that arrived while no wait slept
  const auto slice = [&] { return Deadline::at(std::min(deadline.when(), Deadline::Clock::now() + kSlice)); };
  while (!wait_until(interrupted == nullptr ? deadline : slice())) {
    if (deadline.passed()) throw Error(Code::timeout, "the timeout of this wait has passed; the operation goes on");
    SignalWatch::look();
  }
}

}  // namespace a2a
