// What the Python workers do between the calls that they time, in a shared library: with more ranks than CPUs it keeps
// other ranks from running, so it has to take little. Each is one foreign call on every rank alike.
#include "barrier.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace {

struct Member {
  bench::Line* lines;  // one for each rank
  int rank;
  int size;
  uint64_t round;
  bool yield;
  int64_t limit_ns;
};

}  // namespace

// Joins the barrier in `path`, a zero-filled file with a line for each rank. Returns null if it
// cannot be mapped.
extern "C" void* barrier_join(const char* path, int rank, int size, double limit_s) {
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  const size_t bytes = sizeof(bench::Line) * size;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return nullptr;
  auto* lines = static_cast<bench::Line*>(memory);
  return new Member{lines, rank, size, 0, bench::more_ranks_than_cpus(size), static_cast<int64_t>(limit_s * 1e9)};
}

// 1 when all ranks have met, 2 when rank 0 came with `enough`, 0 when the limit has passed.
extern "C" int barrier_meet(void* member, int enough) {
  auto* m = static_cast<Member*>(member);
  ++m->round;
  if (enough) bench::make_last(m->lines, m->rank, m->round);
  if (!bench::meet(m->lines, m->rank, m->size, m->round, m->yield, m->limit_ns)) return 0;
  return bench::is_last(m->lines, m->round) ? 2 : 1;
}

// Reads all words that were received, and makes the next input by adding 1 to each word. Returns their sum.
extern "C" uint64_t turn(const uint64_t* received, size_t received_words, uint64_t* sent, size_t sent_words) {
  uint64_t sum = 0;
  for (size_t i = 0; i < received_words; ++i) sum += received[i];
  for (size_t i = 0; i < sent_words; ++i) ++sent[i];
  return sum;
}
