// The limits of this process's control groups.
#pragma once

#include <optional>
#include <string>

namespace a2a {

// Returns the CPU time per second: the smallest quota of this process's group and those above it, of versions 2 and 1.
// Nothing without a quota. `groups` is the file in which the kernel names the groups, `root` is where they are mounted.
// cpu_quota() of a2a/host_facts.h asks for those of this process.
std::optional<double> cpu_quota(const std::string& groups, const std::string& root);

}  // namespace a2a
