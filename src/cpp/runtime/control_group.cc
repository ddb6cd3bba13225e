#include "runtime/control_group.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "a2a/host_facts.h"

namespace a2a {
namespace {

std::optional<double> read_number(const std::string& path) {
  std::ifstream file(path);
  double value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

// Returns the quota of one group. Without a limit version 2 says "max", version 1 -1.
std::optional<double> quota_of(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota = 0, period = 0;
  if (file.is_open()) {
    file >> quota >> period;
  } else {
    quota = read_number(folder + "/cpu.cfs_quota_us").value_or(0);
    period = read_number(folder + "/cpu.cfs_period_us").value_or(0);
  }
  return quota > 0 && period > 0 ? std::optional(quota / period) : std::nullopt;
}

bool has_cpu(const std::string& controllers) {
  std::istringstream words(controllers);
  for (std::string word; std::getline(words, word, ',');) {
    if (word == "cpu") return true;
  }
  return false;
}

}  // namespace

std::optional<double> cpu_quota(const std::string& groups, const std::string& root) {
  std::optional<double> least;
  std::ifstream file(groups);
  for (std::string number, controllers, path;
       std::getline(file, number, ':') && std::getline(file, controllers, ':') && std::getline(file, path);) {
    if (number != "0" && !has_cpu(controllers)) continue;
    const std::string mount = number == "0" ? root : root + "/" + controllers;
    for (;;) {
      if (const auto quota = quota_of(mount + path)) least = std::min(least.value_or(*quota), *quota);
      if (path.empty()) break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return least;
}

std::optional<double> cpu_quota() { return cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup"); }

}  // namespace a2a
