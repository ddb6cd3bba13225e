// Four ranks exchange parts of uneven length, first as processes and then as threads of this one.
#include <a2a/bootstrap.h>
#include <a2a/communicator.h>
#include <a2a/plan.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr int kSize = 4;

// How many numbers a rank sends to another, and what the i-th of them is. Both ends can compute it, so each rank knows
// how much it will receive and can check every number it got.
int64_t count(int from, int to) { return 1 + 2 * from + to; }
double value(int from, int to, int64_t i, int round) { return round * 10000 + from * 1000 + to * 100 + double(i); }

// The numbers that `pairs[p]` = (from, to) exchange, one pair after the other.
std::vector<double> numbers(const std::vector<std::pair<int, int>>& pairs, int round) {
  std::vector<double> result;
  for (auto [from, to] : pairs) {
    for (int64_t i = 0; i < count(from, to); ++i) result.push_back(value(from, to, i, round));
  }
  return result;
}

void expect(const std::vector<double>& got, const std::vector<double>& want, const char* what) {
  if (got != want) throw std::runtime_error(std::string("wrong result of ") + what);
}

void exchange(a2a::Communicator& comm) {
  const int rank = comm.rank();
  std::vector<std::pair<int, int>> outgoing, incoming;
  std::vector<int64_t> send_counts, recv_counts;
  for (int peer = 0; peer < comm.size(); ++peer) {
    outgoing.emplace_back(rank, peer);
    incoming.emplace_back(peer, rank);
    send_counts.push_back(count(rank, peer));
    recv_counts.push_back(count(peer, rank));
  }
  std::vector<double> send = numbers(outgoing, 0);
  std::vector<double> recv(numbers(incoming, 0).size());

  // One call, counts in elements.
  a2a::alltoallv<double>(comm, send, send_counts, recv, recv_counts);
  expect(recv, numbers(incoming, 0), "alltoallv");

  // The same exchange many times: check the counts once, then only start and wait.
  const a2a::Plan plan =
      a2a::Plan::alltoallv(rank, comm.size(), sizeof(double), {send_counts}, send.size(), {recv_counts}, recv.size());
  a2a::Call call;
  call.dtype = {.code = 2, .bits = 64, .lanes = 1};  // DLPack: a float of 64 bits
  call.unit_bytes = sizeof(double);
  call.plan = comm.next_plan();
  for (int round = 1; round <= 3; ++round) {
    send = numbers(outgoing, round);
    const void* sends[] = {send.data()};
    void* recvs[] = {recv.data()};
    comm.start(plan, sends, recvs, call)->wait();
    expect(recv, numbers(incoming, round), "planned exchange");
  }
}

// What each rank does, from finding the others to leaving. Returns an exit status.
template <class MeetOthers>
int run_rank(int rank, MeetOthers meet_others) try {
  const std::shared_ptr<a2a::Bootstrap> bootstrap = meet_others();
  const auto comm = a2a::Communicator::create(rank, kSize, *bootstrap, {.timeout_seconds = 60});
  exchange(*comm);
  comm->close();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
  return 1;
}

// Ranks as processes: all they need to know is their rank, the size and a name for the job. Returns how many failed.
int run_processes() {
  const std::string job = "embedding-" + std::to_string(getpid());
  const auto meet = [&job](int rank) {
    return a2a::unix_bootstrap(rank, kSize, job, a2a::Deadline::after_seconds(60));
  };
  std::vector<pid_t> children;
  for (int rank = 0; rank < kSize; ++rank) {
    const pid_t child = fork();
    if (child == 0) _exit(run_rank(rank, [&] { return meet(rank); }));
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    failed += waitpid(child, &status, 0) != child || status != 0;
  }
  return failed;
}

// Ranks as threads: they meet in memory. Returns how many failed.
int run_threads() {
  const auto bootstraps = a2a::thread_bootstraps(kSize);
  std::vector<int> status(kSize);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kSize; ++rank) {
    threads.emplace_back([&, rank] { status[rank] = run_rank(rank, [&] { return bootstraps[rank]; }); });
  }
  for (std::thread& thread : threads) thread.join();
  return static_cast<int>(std::count(status.begin(), status.end(), 1));
}

bool report(const char* kind, int failed) {
  if (failed == 0) std::printf("%d ranks as %s: alltoallv and planned exchange verified\n", kSize, kind);
  return failed == 0;
}

}  // namespace

int main() {
  const bool processes = report("processes", run_processes());  // before this process has threads
  const bool threads = report("threads", run_threads());
  return processes && threads ? 0 : 1;
}
