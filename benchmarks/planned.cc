// A planned exchange from C++, one call at once after the other: `planned RANKS BYTES CALLS` starts RANKS processes,
// each pair of which exchanges BYTES in each call, and prints nanoseconds per call of the slowest rank. planned.py
// runs it.
#include <a2a/bootstrap.h>
#include <a2a/communicator.h>
#include <a2a/plan.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int kWarmUp = 2000;

using Bytes = std::vector<unsigned char>;

unsigned char content(int from, int to) { return static_cast<unsigned char>(1 + 16 * from + to); }

// Nanoseconds per call on this rank; a negative number when something arrived that was not sent.
double measure(a2a::Communicator& comm, int64_t bytes, int calls) {
  const int rank = comm.rank(), size = comm.size();
  const std::vector<int64_t> counts(static_cast<size_t>(size), bytes);
  const size_t total = static_cast<size_t>(bytes) * counts.size();
  Bytes send(total), recv(total), expected(total);
  for (size_t i = 0; i < total; ++i) {
    const int peer = static_cast<int>(i / static_cast<size_t>(bytes));
    send[i] = content(rank, peer);
    expected[i] = content(peer, rank);
  }
  const auto elements = static_cast<int64_t>(total);
  const a2a::Plan plan = a2a::Plan::alltoallv(rank, size, 1, {counts}, elements, {counts}, elements);
  a2a::Call call;
  call.dtype = {.code = 1, .bits = 8, .lanes = 1};  // DLPack: an unsigned integer of 8 bits
  call.unit_bytes = 1;
  call.plan = comm.next_plan();
  const void* sends[] = {send.data()};
  void* recvs[] = {recv.data()};
  std::chrono::steady_clock::time_point start;
  for (int i = -kWarmUp; i < calls; ++i) {
    if (i == 0) start = std::chrono::steady_clock::now();
    comm.start(plan, sends, recvs, call)->wait();
  }
  const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
  return recv == expected ? time.count() / calls : -1;
}

double run_rank(int rank, int size, const std::string& job, int64_t bytes, int calls) try {
  const auto bootstrap = a2a::unix_bootstrap(rank, size, job, a2a::Deadline::after_seconds(60));
  const auto comm = a2a::Communicator::create(rank, size, *bootstrap, {.timeout_seconds = 60});
  const double time = measure(*comm, bytes, calls);
  const double times[] = {time};
  std::vector<double> everyones(static_cast<size_t>(size));
  a2a::allgather<double>(*comm, times, everyones);
  comm->close();
  double slowest = 0;
  for (const double one : everyones) {
    if (one < 0) throw std::runtime_error("wrong contents");
    slowest = std::max(slowest, one);
  }
  return slowest;
} catch (const std::exception& error) {
  std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
  std::_Exit(1);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) return std::fputs("usage: planned RANKS BYTES CALLS\n", stderr), 2;
  const int size = std::atoi(arguments[1]), calls = std::atoi(arguments[3]);
  const int64_t bytes = std::atoll(arguments[2]);
  const std::string job = "planned-" + std::to_string(::getpid());
  for (int rank = 1; rank < size; ++rank) {
    if (::fork() == 0) run_rank(rank, size, job, bytes, calls), std::_Exit(0);
  }
  std::printf("%.1f\n", run_rank(0, size, job, bytes, calls));
  int status = 0;
  bool failed = false;
  while (::wait(&status) > 0) failed |= status != 0;
  return failed ? 1 : 0;
}
