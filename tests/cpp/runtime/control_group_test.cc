#include "runtime/control_group.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "check.h"

using namespace a2a;

namespace {

// A copy of the kernel's files about control groups: the list of a process's groups, and files in folders.
class Groups {
 public:
  struct File {
    std::string name, text;
  };

  Groups(const std::string& list, const std::vector<File>& files) {
    char name[] = "/tmp/a2a-groups-XXXXXX";
    folder_ = ::mkdtemp(name);
    write("list", list);
    for (const File& file : files) write("root/" + file.name, file.text);
  }
  ~Groups() { std::filesystem::remove_all(folder_); }
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  double quota() const { return cpu_quota(folder_ / "list", folder_ / "root").value_or(0); }

 private:
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }

  std::filesystem::path folder_;
};

}  // namespace

TEST("a quota of CPUs is found in control groups of version 2, the smallest one on the way up") {
  CHECK_EQ(Groups("0::/a/b\n", {{"a/b/cpu.max", "150000 100000\n"}}).quota(), 1.5);
  CHECK_EQ(Groups("0::/a/b\n", {{"a/b/cpu.max", "max 100000\n"}, {"a/cpu.max", "200000 100000\n"}}).quota(), 2.0);
  CHECK_EQ(Groups("0::/a/b\n", {{"a/b/cpu.max", "300000 100000\n"}, {"a/cpu.max", "200000 100000\n"}}).quota(), 2.0);
  CHECK_EQ(Groups("0::/\n", {{"cpu.max", "50000 100000\n"}}).quota(), 0.5);
  // In a container the folder that the kernel names may not exist; then the mounted folder is that group.
  CHECK_EQ(Groups("0::/docker/0123\n", {{"cpu.max", "400000 100000\n"}}).quota(), 4.0);
}

TEST("a quota of CPUs is found in control groups of version 1") {
  const std::string list = "12:memory:/m\n4:cpu,cpuacct:/jobs/a:b\n1:name=systemd:/x\n";
  const std::string own = "cpu,cpuacct/jobs/a:b/";
  CHECK_EQ(Groups(list, {{own + "cpu.cfs_quota_us", "250000\n"}, {own + "cpu.cfs_period_us", "100000\n"}}).quota(),
           2.5);
  CHECK_EQ(Groups(list, {{own + "cpu.cfs_quota_us", "-1\n"}, {own + "cpu.cfs_period_us", "100000\n"}}).quota(), 0.0);
  CHECK_EQ(Groups(list, {{own + "cpu.cfs_quota_us", "-1\n"},
                         {own + "cpu.cfs_period_us", "100000\n"},
                         {"cpu,cpuacct/cpu.cfs_quota_us", "100000\n"},
                         {"cpu,cpuacct/cpu.cfs_period_us", "50000\n"}})
               .quota(),
           2.0);
}

TEST("without control groups there is no quota") {
  CHECK_EQ(Groups("", {}).quota(), 0.0);
  CHECK_EQ(Groups("0::/a\n", {{"a/cpu.max", "max 100000\n"}}).quota(), 0.0);
  CHECK_EQ(Groups("nonsense\n3:cpuset:/a\n", {{"cpuset/a/cpu.max", "1 1\n"}}).quota(), 0.0);
}
