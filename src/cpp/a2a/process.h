// What the kernel says about another process, for messages.
#pragma once

#include <sys/types.h>

#include <string>

namespace a2a {

// "pid 4711, alive", "pid 4711, alive but stopped" or "pid 4711, exited".
std::string process_in_words(pid_t pid);

}  // namespace a2a
