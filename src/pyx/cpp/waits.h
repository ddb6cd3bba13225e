// Waits for an operation, in slices between which the caller checks for signals.
#pragma once

#include <algorithm>
#include <chrono>

#include "a2a/views.h"
#include "a2a/work.h"
#include "cpp/exchange.h"

namespace a2a_py {

inline bool wait_briefly(a2a::Work& work) { return work.wait_briefly(); }

// Waits for a while, so that the caller can check for signals between two waits. Returns true once finished. Throws
// Error(timeout) when `until` has passed.
inline bool wait_slice(a2a::Work& work, const When& until) {
  const auto now = a2a::Deadline::Clock::now();
  if (until && until->passed(now)) {
    work.wait(*until);
    return true;
  }
  auto end = now + std::chrono::milliseconds(50);
  if (until) end = std::min(end, until->when());
  return work.wait_until(a2a::Deadline::at(end));
}

// Whether the caller may reuse the memory of the buffers. False, the safe answer, when the work cannot tell.
inline bool let_go(a2a::Work& work) noexcept {
  try {
    return work.let_go();
  } catch (...) {
    return false;
  }
}

// Waits for a while, as wait_slice().
inline bool wait_released_slice(a2a::Views& views, const When& until) {
  auto end = a2a::Deadline::Clock::now() + std::chrono::milliseconds(50);
  if (until) end = std::min(end, until->when());
  return views.wait_released(a2a::Deadline::at(end));
}

}  // namespace a2a_py
