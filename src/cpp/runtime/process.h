// Facts about another process, for messages.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace a2a {

// "pid 4711, alive", "pid 4711, alive but stopped" or "pid 4711, exited".
std::string process_in_words(pid_t pid);

// Whether the process has ended. It may still be a zombie that its parent has not reaped.
bool has_exited(pid_t pid);

// Returns when it started, in clock ticks since the host booted, which tells it from a later process of the same
// number; 0 when there is no such process, or /proc is that of another PID namespace.
uint64_t process_start(pid_t pid);

}  // namespace a2a
