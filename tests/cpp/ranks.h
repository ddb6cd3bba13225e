// Runs a test as several ranks: as threads of this program, or as processes forked from it.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "a2a/communicator.h"
#include "check.h"

namespace ranks {

using Body = std::function<void(a2a::Communicator&)>;

inline void as_threads(int n, const Body& body, double timeout = 60) {
  const auto bootstraps = a2a::thread_bootstraps(n);
  check::threads(n, [&](int rank) {
    const auto comm = a2a::Communicator::create(rank, n, *bootstraps[static_cast<size_t>(rank)], {timeout});
    body(*comm);
  });
}

// Returns a job name that no other job uses.
inline std::string new_job() {
  static int count = 0;
  return "test-" + std::to_string(getpid()) + "-" + std::to_string(++count);
}

struct Processes {
  std::vector<pid_t> pids;

  // Waits for all of them; returns their wait statuses. The alarm of a child kills it if it takes too long.
  std::vector<int> wait() {
    std::vector<int> statuses;
    for (const pid_t pid : pids) {
      int status = 0;
      waitpid(pid, &status, 0);
      statuses.push_back(status);
    }
    pids.clear();
    return statuses;
  }
};

// Forks n children; each makes its communicator, runs the body, and exits with whether its checks passed.
inline Processes start_processes(int n, const Body& body, double timeout = 60, unsigned limit_seconds = 120) {
  Processes processes;
  const std::string job = new_job();
  std::cout.flush();
  for (int rank = 0; rank < n; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(limit_seconds);
      check::failures = 0;
      check::shown_until = 20;
      check::guarded("rank " + std::to_string(rank), [&] {
        const check::Note note("rank", static_cast<uint64_t>(rank));
        const auto bootstrap = a2a::unix_bootstrap(rank, n, job, a2a::Deadline::after_seconds(timeout));
        const auto comm = a2a::Communicator::create(rank, n, *bootstrap, {timeout});
        body(*comm);
      });
      std::cerr.flush();
      _exit(check::failures == 0 ? 0 : 1);
    }
    processes.pids.push_back(pid);
  }
  return processes;
}

inline void as_processes(int n, const Body& body, double timeout = 60) {
#if defined(__SANITIZE_THREAD__)
  return;
#endif
  auto processes = start_processes(n, body, timeout);
  for (const int status : processes.wait()) CHECK_EQ(status, 0);
}

// Runs the ranks as threads, then as processes. ThreadSanitizer does not see other processes and does not support
// fork() well: threads only.
inline void everywhere(int n, const Body& body) {
  as_threads(n, body);
  as_processes(n, body);
}

}  // namespace ranks
