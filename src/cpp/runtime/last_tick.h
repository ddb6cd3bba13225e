// The time at the kernel's last tick, which is cheaper to read than the exact clock. Not public.
#pragma once

#include <time.h>

#include <chrono>

#include "a2a/types.h"

namespace a2a {

// The longest time between two ticks of the kernel's clock.
inline constexpr auto kTick = std::chrono::milliseconds(10);

// Returns the monotonic clock as of the kernel's last tick.
inline Deadline::Clock::time_point last_tick() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return Deadline::Clock::time_point(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

}  // namespace a2a
