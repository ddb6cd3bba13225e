// What the kernel's copy from another process depends on: which memory lies in huge pages, and which is there at all.
#pragma once

#include <cstddef>
#include <span>

#include "core/schedule.h"

namespace a2a::shm {

// Whether any of four places in this process's memory in these runs lies in a huge page. The kernel's copy pins each
// page: from those of 4 KiB it may take four times as long. Ranks that come to different answers keep each other
// waiting, so it does not matter how much of an array lies before its first huge page and behind its last one. Takes
// some microseconds. True where the kernel does not tell: before Linux 6.7, and without /proc.
bool has_huge_pages(std::span<const Run> runs);

// The same for exchanges that come again: an answer stands for a while for runs that begin and end where the last ones
// did. Asking takes 20 us where the kernel's part of it has left the caches, as it has when this matters.
class HugePages {
 public:
  bool in(std::span<const Run> runs);

 private:
  const std::byte *begin_ = nullptr, *end_ = nullptr;
  unsigned uses_ = 0;
  bool found_ = false;
};

// Whether all of this process's memory in these runs is mapped in its page tables, so that nobody who copies from there
// takes a page fault. Of memory that was never written, that was swapped out, or that belongs to a file nobody has read
// yet, the answer is no. Takes a microsecond, and one more for each MiB (Linux 6.7; before, up to ten for each MiB of
// shared memory and of files). Where runs lie close together what is between them counts as well.
bool are_present(std::span<const Run> runs);

}  // namespace a2a::shm
