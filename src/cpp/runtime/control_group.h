// The limits of this process's control groups.
#pragma once

#include <optional>
#include <string>

#include "a2a/types.h"

namespace a2a {

// Returns the CPU time per second: the smallest quota of this process's group and those above it, of versions 2 and 1.
// Nothing without a quota. `groups` is the file in which the kernel names the groups, `root` is where they are mounted.
A2A_API std::optional<double> cpu_quota(const std::string& groups = "/proc/self/cgroup",
                                        const std::string& root = "/sys/fs/cgroup");

}  // namespace a2a
