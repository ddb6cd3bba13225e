#include "transport/shm/copy/calibration.h"

#include <ctime>

#include "check.h"

namespace {

using namespace a2a;
using namespace a2a::shm;

// Returns the CPU time of this thread in nanoseconds.
int64_t cpu_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

TEST("the threshold of CMA is measured once") {
  int64_t begin = cpu_time();
  const size_t measured = cma_pays_from();
  const int64_t measuring = cpu_time() - begin;
  CHECK(measured == kLeastCalibrated || measured == 1 << 20 || measured == SIZE_MAX);
  begin = cpu_time();
  CHECK_EQ(cma_pays_from(), measured);
  CHECK(cpu_time() - begin < measuring / 3);
}

}  // namespace
