// Which memory lies in huge pages. The kernel's copy from another process pins each page: from those of 4 KiB it may
// take four times as long.
#pragma once

#include <span>

#include "a2a/schedule.h"

namespace a2a::shm {

// Whether most of this process's memory in these runs, by a sample of it, lies in huge pages. Takes some microseconds.
// True where the kernel does not tell: before Linux 6.7, and without /proc.
bool mostly_in_huge_pages(std::span<const Run> runs);

}  // namespace a2a::shm
