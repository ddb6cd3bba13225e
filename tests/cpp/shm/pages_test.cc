// What the kernel tells of memory: huge pages, and pages that are there.
#include "transport/shm/copy/pages.h"

#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "check.h"

namespace {

using namespace a2a;
using namespace a2a::shm;

// Memory that begins at the alignment of a huge page.
class Pages {
 public:
  Pages(size_t bytes, int advice) : bytes_(bytes + kHuge) {
    at_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    begin_ = static_cast<std::byte*>(at_) + -reinterpret_cast<uintptr_t>(at_) % kHuge;
    renew(advice);
  }
  ~Pages() { ::munmap(at_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  // Replaces the pages by new ones at the same address.
  void renew(int advice) {
    const size_t bytes = bytes_ - kHuge;
    ::madvise(begin_, bytes, MADV_DONTNEED);
    ::madvise(begin_, bytes, advice);
    std::memset(begin_, 1, bytes);
  }

  Run run(size_t from, size_t bytes) const { return {0, begin_ + from, bytes}; }

 private:
  static constexpr size_t kHuge = size_t{2} << 20;
  size_t bytes_;
  void* at_;
  std::byte* begin_;
};

// Returns the bytes of this process in huge pages, as the kernel counts them.
size_t bytes_in_huge_pages() {
  std::ifstream file("/proc/self/smaps_rollup");
  size_t kilobytes = 0;
  for (std::string line; std::getline(file, line);) std::sscanf(line.c_str(), "AnonHugePages: %zu", &kilobytes);
  return kilobytes << 10;
}

// Whether the kernel has the call, which it has from Linux 6.7 on.
bool kernel_tells_of_pages() {
  utsname system{};
  ::uname(&system);
  int major = 0, minor = 0;
  return std::sscanf(system.release, "%d.%d", &major, &minor) == 2 && (major > 6 || (major == 6 && minor >= 7));
}

TEST("memory in huge pages is recognised") {
  constexpr size_t kMiB = size_t{1} << 20;
  const size_t before = bytes_in_huge_pages();
  const Pages huge(16 * kMiB, MADV_HUGEPAGE);
  const bool are_huge = bytes_in_huge_pages() >= before + 16 * kMiB;  // the machine may have none
  const Pages small(16 * kMiB, MADV_NOHUGEPAGE);
  const auto any = [](std::vector<Run> runs) { return has_huge_pages(runs); };
  if (are_huge) {
    CHECK(any({huge.run(16, 12 * kMiB)}));
    CHECK(any({huge.run(0, 4 * kMiB), huge.run(5, 0), huge.run(0, 1)}));
    CHECK(any({small.run(16, 12 * kMiB), huge.run(0, 4 * kMiB)}));
  }
  if (!kernel_tells_of_pages()) return;
  CHECK(!any({small.run(0, 16 * kMiB)}) && !any({}));
  CHECK(!any({small.run(16, 15 * kMiB), huge.run(0, 1 * kMiB)}));
}

// A mapped file that was not read through this mapping.
class FilePages {
 public:
  FilePages(size_t bytes, int protection) : bytes_(bytes) {
    std::FILE* file = std::tmpfile();
    CHECK_EQ(::ftruncate(::fileno(file), static_cast<off_t>(bytes)), 0);
    at_ = ::mmap(nullptr, bytes, protection, MAP_SHARED, ::fileno(file), 0);
    ::madvise(at_, bytes, MADV_RANDOM);  // one page for each fault
    std::fclose(file);
  }
  ~FilePages() { ::munmap(at_, bytes_); }
  FilePages(const FilePages&) = delete;
  FilePages& operator=(const FilePages&) = delete;

  Run run(size_t from, size_t bytes) const { return {0, static_cast<std::byte*>(at_) + from, bytes}; }

 private:
  size_t bytes_;
  void* at_;
};

bool read_pages(const Run& run) {
  int sum = 0;
  for (size_t i = 0; i < run.bytes; i += 4096)
    sum += std::to_integer<int>(*const_cast<volatile std::byte*>(run.data + i));
  return sum >= 0;
}

TEST("memory without pages is recognised") {
  constexpr size_t kMiB = size_t{1} << 20, kPage = 4096;
  const auto all = [](std::vector<Run> runs) { return are_present(runs); };
  const Pages pages(8 * kMiB, MADV_NOHUGEPAGE);
  CHECK(all({}) && all({pages.run(0, 8 * kMiB)}) && all({pages.run(17, 3), pages.run(kMiB, 5 * kMiB)}));
  ::madvise(pages.run(4 * kMiB, 0).data, kPage, MADV_DONTNEED);
  CHECK(!all({pages.run(0, 8 * kMiB)}) && !all({pages.run(4 * kMiB + kPage - 1, 1)}));
  CHECK(all({pages.run(0, 4 * kMiB)}) && all({pages.run(4 * kMiB + kPage, kMiB)}));
  // If runs are far apart only their own pages count; if they are close, the pages between them as well.
  CHECK(all({pages.run(0, kPage), pages.run(7 * kMiB, kPage)}));
  CHECK(!all({pages.run(4 * kMiB - kPage, kPage), pages.run(4 * kMiB + kPage, kPage)}));
  for (const int protection : {PROT_READ, PROT_READ | PROT_WRITE}) {
    const FilePages file(kMiB, protection);
    CHECK(!all({file.run(0, kMiB)}));
    CHECK(read_pages(file.run(0, kMiB / 2)));
    CHECK(all({file.run(0, kMiB / 2)}) && !all({file.run(0, kMiB)}));
  }
}

TEST("an answer about huge pages is cached for the same memory") {
  if (!kernel_tells_of_pages()) return;
  constexpr size_t kMiB = size_t{1} << 20;
  Pages pages(16 * kMiB, MADV_NOHUGEPAGE);
  const std::vector<Run> some{pages.run(0, 8 * kMiB)}, more{pages.run(0, 9 * kMiB)};
  HugePages asked;
  CHECK(!asked.in(some) && !asked.in({}));
  const size_t before = bytes_in_huge_pages();
  pages.renew(MADV_HUGEPAGE);
  if (bytes_in_huge_pages() < before + 16 * kMiB) return;  // the machine may have none
  CHECK(!asked.in(some));
  CHECK(asked.in(more) && asked.in(some));
  pages.renew(MADV_NOHUGEPAGE);
  int stood = 0;
  while (asked.in(some)) ++stood;
  CHECK_EQ(stood, 255);
}

}  // namespace
