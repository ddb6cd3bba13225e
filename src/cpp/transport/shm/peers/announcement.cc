#include "transport/shm/peers/announcement.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "a2a/host_facts.h"
#include "transport/shm/peers/shm_progress.h"
#include "transport/shm/peers/unix_socket.h"

namespace a2a::shm {
namespace {

uint64_t pid_namespace() {
  struct stat status{};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

}  // namespace

std::string_view Announcement::listener_name() const { return {listener, ::strnlen(listener, sizeof(listener))}; }

Announcement own_announcement(ShmProgress& progress, int size, uint64_t block, const std::string& listener) {
  ProcessMemory& memory = progress.memory();
  Announcement mine;
  mine.uid = ::geteuid();
  mine.size = size;
  mine.bell = progress.bell_index();
  mine.pid = ::getpid();
  mine.pid_namespace = pid_namespace();
  if (!std::ifstream("/proc/sys/kernel/random/boot_id").read(mine.boot_id, 36)) {
    system_failure("cannot read the boot id");
  }
  mine.nonce = memory.nonce();
  mine.nonce_address = reinterpret_cast<uint64_t>(&memory.nonce());
  mine.segment_bytes = memory.arena().bytes();
  mine.common_bytes = memory.common().bytes();
  mine.seat = progress.seat_offset();
  mine.block = block;
  mine.cpu_quota_micros = static_cast<uint64_t>(cpu_quota().value_or(0) * 1e6);
  ::sched_getaffinity(0, sizeof(mine.cpus), &mine.cpus);
  listener.copy(mine.listener, sizeof(mine.listener));
  return mine;
}

Announcement parse_announcement(const std::string& text, const std::string& who, const Announcement& mine,
                                const std::string& me) {
  Announcement theirs;
  if (text.size() == sizeof(theirs)) std::memcpy(&theirs, text.data(), sizeof(theirs));
  if (text.size() != sizeof(theirs) || theirs.protocol != kProtocol) {
    throw Error(Code::unsupported, who + " runs another version of this library");
  }
  if (theirs.size != mine.size) {
    throw Error(Code::invalid_argument, who + " was started with size " + std::to_string(theirs.size) + ", " + me +
                                            " with size " + std::to_string(mine.size));
  }
  if (std::memcmp(theirs.boot_id, mine.boot_id, sizeof(mine.boot_id)) != 0) {
    throw Error(Code::unsupported, who + " lives on another host than " + me + "; shared memory ends at the host");
  }
  if (theirs.uid != mine.uid) {
    throw Error(Code::unsupported, who + " belongs to user " + std::to_string(theirs.uid) + ", " + me + " to user " +
                                       std::to_string(mine.uid));
  }
  return theirs;
}

Surroundings surroundings_of(std::span<const Announcement> ranks) {
  cpu_set_t all{};
  uint64_t quota = 0;
  for (const Announcement& a : ranks) {
    CPU_OR(&all, &all, &a.cpus);
    quota = std::max(quota, a.cpu_quota_micros);
  }
  Surroundings found;
  found.ranks = static_cast<int>(ranks.size());
  found.cpus = CPU_COUNT(&all);
  if (quota > 0) {
    const int allowed = std::max(1, static_cast<int>((quota + 999'999) / 1'000'000));
    found.cpus = std::min(found.cpus, allowed);
  }
  return found;
}

}  // namespace a2a::shm
