// The barrier as a shared library for the Python workers: leaving it costs one foreign call on every rank alike.
#include "barrier.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

struct Member {
  bench::Line* lines;
  int rank;
  int size;
  uint64_t round;
  bool yield;
  int64_t limit_ns;
};

}  // namespace

// Joins the barrier in `path`, a zero-filled file of at least 128 bytes per rank. Returns null if it cannot be mapped.
extern "C" void* barrier_join(const char* path, int rank, int size, double limit_s) {
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* memory = mmap(nullptr, sizeof(bench::Line) * size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return nullptr;
  auto* lines = static_cast<bench::Line*>(memory);
  return new Member{lines, rank, size, 0, bench::more_ranks_than_cpus(size), static_cast<int64_t>(limit_s * 1e9)};
}

// 1 when all ranks have met, 0 when the limit has passed.
extern "C" int barrier_meet(void* member) {
  auto* m = static_cast<Member*>(member);
  return bench::meet(m->lines, m->rank, m->size, ++m->round, m->yield, m->limit_ns) ? 1 : 0;
}
