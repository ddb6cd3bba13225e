#include "transport/shm/copy/pages.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "runtime/descriptor.h"

namespace a2a::shm {
namespace {

// The arguments of PAGEMAP_SCAN (linux/fs.h); older headers do not have it.
struct Region {
  uint64_t start, end, categories;
};
struct Scan {
  uint64_t size, flags, start, end, walk_end, regions, most_regions, most_pages;
  uint64_t inverted, all_of, any_of, wanted;
};
constexpr uint64_t kPresent = uint64_t{1} << 3, kHuge = uint64_t{1} << 6;

// A bit of an entry of /proc/self/pagemap.
constexpr uint64_t kEntryPresent = uint64_t{1} << 63;

uint64_t page_bytes() {
  static const auto bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// The addresses of the pages that hold some bytes.
struct Range {
  uint64_t begin, end;
};

Range pages_of(const std::byte* data, size_t bytes) {
  const auto at = reinterpret_cast<uint64_t>(data), last = at + bytes - 1;
  return {at - at % page_bytes(), last - last % page_bytes() + page_bytes()};
}

class Pagemap {
 public:
  Pagemap() : fd_(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {}

  // Whether any page is of a category, or with `inverted` set, is not of it. Negative where the kernel does not support
  // the call.
  int any(const Range& pages, uint64_t category, uint64_t inverted = 0) const {
    Region found{};
    Scan scan{};
    scan.size = sizeof(scan);
    scan.start = pages.begin;
    scan.end = pages.end;
    scan.regions = reinterpret_cast<uint64_t>(&found);
    scan.most_regions = scan.most_pages = 1;
    scan.inverted = inverted;
    scan.all_of = scan.wanted = category;
    return ::ioctl(fd_.fd(), _IOWR('f', 16, Scan), &scan);
  }

  bool all_present(const Range& pages) const {
    const int absent = any(pages, kPresent, kPresent);
    if (absent >= 0) return absent == 0;
    // mincore() is faster than reading the entries, but reports pages of files that this process may not write as
    // present.
    return fd_.fd() < 0 ? are_in_core(pages) : all_entries_present(pages);
  }

  // Whether the program has closed the descriptor.
  bool lost() const { return fd_.open() && fd_.if_ours() < 0; }

 private:
  bool all_entries_present(const Range& pages) const {
    uint64_t entries[512];
    for (uint64_t at = pages.begin; at < pages.end; at += std::size(entries) * page_bytes()) {
      const size_t count = std::min(std::size(entries), static_cast<size_t>((pages.end - at) / page_bytes()));
      const auto bytes = static_cast<ssize_t>(count * sizeof(uint64_t));
      const auto offset = static_cast<off_t>(at / page_bytes() * sizeof(uint64_t));
      if (::pread(fd_.fd(), entries, static_cast<size_t>(bytes), offset) != bytes) return false;
      const auto present = [](uint64_t entry) { return (entry & kEntryPresent) != 0; };
      if (!std::all_of(entries, entries + count, present)) return false;
    }
    return true;
  }

  static bool are_in_core(const Range& pages) {
    unsigned char in_core[4096];
    for (uint64_t at = pages.begin; at < pages.end; at += std::size(in_core) * page_bytes()) {
      const size_t count = std::min(std::size(in_core), static_cast<size_t>((pages.end - at) / page_bytes()));
      if (::mincore(reinterpret_cast<void*>(at), count * page_bytes(), in_core) != 0) return false;
      if (!std::all_of(in_core, in_core + count, [](unsigned char page) { return (page & 1) != 0; })) return false;
    }
    return true;
  }

  Descriptor fd_;
};

// Opens the pagemap once, because opening takes longer than a query. A forked child opens its own: the inherited one
// shows the parent's memory. Never closed: other threads may be using it.
const Pagemap& own_pagemap() {
  struct Kept {
    pid_t pid = ::getpid();
    Pagemap pagemap;
  };
  static std::atomic<const Kept*> kept{nullptr};
  const Kept* known = kept.load(std::memory_order_acquire);
  if (known == nullptr || known->pid != ::getpid() || known->pagemap.lost()) {
    auto fresh = std::make_unique<const Kept>();
    if (kept.compare_exchange_strong(known, fresh.get(), std::memory_order_acq_rel)) known = fresh.release();
  }
  return known->pagemap;
}

const std::byte* byte_at(std::span<const Run> runs, size_t offset) {
  while (offset >= runs.front().bytes) {
    offset -= runs.front().bytes;
    runs = runs.subspan(1);
  }
  return runs.front().place(offset);
}

size_t bytes_of(std::span<const Run> runs) {
  size_t bytes = 0;
  for (const Run& run : runs) bytes += run.bytes;
  return bytes;
}

}  // namespace

bool has_huge_pages(std::span<const Run> runs) {
  constexpr size_t kSamples = 4;
  const size_t bytes = bytes_of(runs);
  if (bytes < kSamples) return false;
  const Pagemap& pagemap = own_pagemap();
  for (size_t i = 0; i < kSamples; ++i) {
    const std::byte* at = byte_at(runs, bytes / (2 * kSamples) * (2 * i + 1));
    if (pagemap.any(pages_of(at, 1), kHuge) != 0) return true;
  }
  return false;
}

bool HugePages::in(std::span<const Run> runs) {
  constexpr unsigned kUses = 256;  // one for each peer
  if (runs.empty()) return false;
  const std::byte *begin = runs.front().place(0), *end = runs.back().place(runs.back().bytes - 1) + 1;
  if (begin != begin_ || end != end_ || ++uses_ > kUses) {
    found_ = has_huge_pages(runs);
    begin_ = begin;
    end_ = end;
    uses_ = 1;
  }
  return found_;
}

bool are_present(std::span<const Run> runs) {
  if (runs.empty()) return true;
  const std::byte *begin = runs.front().memory().data(), *end = begin;
  for (const Run& run : runs) {
    const std::span<const std::byte> memory = run.memory();
    begin = std::min(begin, memory.data());
    end = std::max(end, memory.data() + memory.size());
  }
  const Pagemap& pagemap = own_pagemap();
  const auto spread = static_cast<size_t>(end - begin);
  if (spread / 2 <= bytes_of(runs)) return pagemap.all_present(pages_of(begin, spread));
  return std::ranges::all_of(runs, [&](const Run& run) {
    const std::span<const std::byte> memory = run.memory();
    return pagemap.all_present(pages_of(memory.data(), memory.size()));
  });
}

}  // namespace a2a::shm
