// The time, for a fifth of what the exact clock costs. Not public.
#pragma once

#include <time.h>

#include <chrono>

#include "a2a/types.h"

namespace a2a {

// The longest that the kernel leaves between two ticks of its clock.
inline constexpr auto kTick = std::chrono::milliseconds(10);

// The monotonic clock as it stood at the kernel's last tick.
inline Deadline::Clock::time_point last_tick() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return Deadline::Clock::time_point(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

}  // namespace a2a
