// What it costs to make a plan: global_scatter with 8 experts on each rank, and counts that vary. Time of this thread
// alone, the best of 30. README.md has the command.
#include <a2a/plan.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

namespace {

constexpr int kExperts = 8;
constexpr size_t kRowBytes = 14336;  // 7168 of bfloat16
constexpr int kRepeats = 30;

double microseconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

std::vector<int64_t> counts(int ranks, unsigned seed) {
  std::mt19937 chance(seed);
  std::vector<int64_t> rows(static_cast<size_t>(ranks) * kExperts);
  for (int64_t& count : rows) count = static_cast<int64_t>(chance() % 5);
  return rows;
}

}  // namespace

int main() {
  std::puts("   ranks   segments   time(us)   ns/segment");
  for (const int ranks : {16, 64, 256, 1024, 4096}) {
    const std::vector<int64_t> local = counts(ranks, 1);
    std::vector<int64_t> global = counts(ranks, 2);
    std::copy_n(local.begin(), kExperts, global.begin());  // what rank 0 sends itself
    double best = 1e12;
    size_t segments = 0;
    for (int i = 0; i < kRepeats; ++i) {
      const double start = microseconds();
      const a2a::Plan plan = a2a::Plan::global_scatter(0, ranks, kRowBytes, local, global);
      best = std::min(best, microseconds() - start);
      segments = plan.sends().size() + plan.recvs().size();
    }
    std::printf("%8d %10zu %10.1f %12.1f\n", ranks, segments, best, best * 1e3 / static_cast<double>(segments));
  }
}
