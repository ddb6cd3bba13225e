// What the control groups of this process allow it.
#pragma once

#include <optional>
#include <string>

#include "a2a/types.h"

namespace a2a {

// CPU time per second: the smallest quota of this process's group and those above it, of version 2 and 1. Nothing
// without one. `groups` is where the kernel names the groups, `root` where they are mounted.
A2A_API std::optional<double> cpu_quota(const std::string& groups = "/proc/self/cgroup",
                                        const std::string& root = "/sys/fs/cgroup");

}  // namespace a2a
