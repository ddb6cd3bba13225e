// What the transport of host memory does on this machine, for `a2a info` and for messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace a2a {

struct HostFacts {
  int ranks = 1;  // of the group on this host
  int cpus = 1;   // allowed to them together
  bool oversubscribed = false;
  bool cma = false;       // every peer of this host may be read with process_vm_readv
  int hosts = 1;          // that the group's ranks live on
  uint64_t messages = 0;  // that this rank has sent to other hosts
  // From how many bytes on this rank's host memory takes another way (A2A_SHM_..._MIN in docs/transports.md).
  size_t direct_min = 0, cma_min = 0, stream_min = 0;
  bool string_copies = false;  // of 4 KiB and more, by `rep movsb` and not by a loop, because they are faster here
  bool puts = false;           // one copy from shared memory to shared memory is made by its sender
};

// Which way bytes of host memory go to a peer, and why, in words.
struct WayOfBytes {
  std::string memory;  // where they lie: "shared memory", "private memory in huge pages", ...
  std::string way;     // "inlined", "staged", "shared", "pointer", "cma", or the name of a network
  std::string reason;
};

}  // namespace a2a
