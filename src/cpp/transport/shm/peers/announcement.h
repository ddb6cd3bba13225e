// What each rank of a group sends to the others through the bootstrap, so that they can connect to it.
#pragma once

#include <sched.h>

#include <cstdint>
#include <span>
#include <string>

#include "a2a/types.h"
#include "transport/shm/peers/local_peer.h"

namespace a2a::shm {

constexpr uint32_t kProtocol =
    17;  // bump it with every change of layout.h, of Announcement, and of what handshake.cc sends

// The ranks exchange plain copies of it: they are on one host, and run one version of this library.
struct Announcement {
  uint32_t protocol = kProtocol;
  uint32_t uid = 0;
  int32_t size = 0;
  uint32_t bell = 0;
  int32_t pid = 0;
  uint64_t pid_namespace = 0;
  char boot_id[40] = {};
  uint64_t nonce = 0;          // of the process
  uint64_t nonce_address = 0;  // in the memory of the process
  uint64_t segment_bytes = 0, common_bytes = 0;
  uint64_t seat = 0, block = 0;   // offsets in the segment
  uint64_t cpu_quota_micros = 0;  // CPU time that its control group allows per second; 0: no limit
  cpu_set_t cpus = {};
  char listener[32] = {};  // abstract name of the socket, without its leading zero

  std::string_view listener_name() const;
};

// Returns the announcement of this rank.
Announcement own_announcement(ShmProgress& progress, int size, uint64_t block, const std::string& listener);

// Parses the announcement in `text`, which came from rank `who`. Throws Error(unsupported) when it comes from another
// version, another host or another user, Error(invalid_argument) when that rank was started with another size.
Announcement parse_announcement(const std::string& text, const std::string& who, const Announcement& mine,
                                const std::string& me);

// Returns the CPUs that the ranks may use together.
Surroundings surroundings_of(std::span<const Announcement> ranks);

}  // namespace a2a::shm
