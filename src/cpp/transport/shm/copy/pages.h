// Finds out which memory lies in huge pages, and which is present: the speed of CMA depends on both.
#pragma once

#include <cstddef>
#include <span>

#include "core/schedule.h"

namespace a2a::shm {

// Whether any of four samples of these runs in this process's memory lies in a huge page. CMA pins each page, so small
// pages make it slower. Samples are enough: ranks with different answers would keep each other waiting, and the ends of
// an array may lie outside of its huge pages. True where the kernel does not tell: before Linux 6.7, and without /proc.
bool has_huge_pages(std::span<const Run> runs);

// Caches has_huge_pages(): an answer holds for a number of calls with runs that begin and end at the same addresses.
class HugePages {
 public:
  bool in(std::span<const Run> runs);

 private:
  const std::byte *begin_ = nullptr, *end_ = nullptr;
  unsigned uses_ = 0;
  bool found_ = false;
};

// Whether all pages of these runs are present in this process's page tables, so that a peer's copy takes no page fault.
// They are not if they were never written, were swapped out, or belong to a file that nobody has read. Counts the bytes
// between runs that lie close together, too.
bool are_present(std::span<const Run> runs);

}  // namespace a2a::shm
