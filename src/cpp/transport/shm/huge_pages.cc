#include "transport/shm/huge_pages.h"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <cstdint>

#include "transport/shm/arena.h"

namespace a2a::shm {
namespace {

// What PAGEMAP_SCAN of linux/fs.h takes and gives; older headers do not have it.
struct Region {
  uint64_t start, end, categories;
};
struct Scan {
  uint64_t size, flags, start, end, walk_end, regions, most_regions, most_pages;
  uint64_t inverted, all_of, any_of, wanted;
};
constexpr uint64_t kHuge = uint64_t{1} << 6;

// Negative where the kernel does not tell.
int in_huge_page(int pagemap, const std::byte* at) {
  constexpr uint64_t kPage = 4096;
  Region found{};
  Scan scan{};
  scan.size = sizeof(scan);
  scan.start = reinterpret_cast<uint64_t>(at) / kPage * kPage;
  scan.end = scan.start + kPage;
  scan.regions = reinterpret_cast<uint64_t>(&found);
  scan.most_regions = 1;
  scan.all_of = scan.wanted = kHuge;
  return ::ioctl(pagemap, _IOWR('f', 16, Scan), &scan);
}

const std::byte* byte_at(std::span<const Run> runs, size_t offset) {
  while (offset >= runs.front().bytes) {
    offset -= runs.front().bytes;
    runs = runs.subspan(1);
  }
  return runs.front().data + offset;
}

}  // namespace

bool has_huge_pages(std::span<const Run> runs) {
  constexpr size_t kSamples = 4;
  size_t bytes = 0;
  for (const Run& run : runs) bytes += run.bytes;
  if (bytes < kSamples) return false;
  const Fd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  for (size_t i = 0; i < kSamples; ++i) {
    const int found = in_huge_page(pagemap.get(), byte_at(runs, bytes / (2 * kSamples) * (2 * i + 1)));
    if (found != 0) return true;
  }
  return false;
}

bool HugePages::in(std::span<const Run> runs) {
  constexpr unsigned kUses = 256;  // one for each peer
  if (runs.empty()) return false;
  const std::byte *begin = runs.front().data, *end = runs.back().data + runs.back().bytes;
  if (begin != begin_ || end != end_ || ++uses_ > kUses) {
    found_ = has_huge_pages(runs);
    begin_ = begin;
    end_ = end;
    uses_ = 1;
  }
  return found_;
}

}  // namespace a2a::shm
