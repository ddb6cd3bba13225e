// What the kernel says about another process, for messages.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace a2a {

// "pid 4711, alive", "pid 4711, alive but stopped" or "pid 4711, exited".
std::string process_in_words(pid_t pid);

// Whether there is no such process any more, or only what its parent has not collected yet.
bool has_exited(pid_t pid);

// When it started, in clock ticks since the host booted, which tells it from a later process of the same number; 0 when
// there is none, or /proc is that of another PID namespace.
uint64_t process_start(pid_t pid);

}  // namespace a2a
