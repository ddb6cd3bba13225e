// How the self-tests of the doubles run: in processes of their own, because a process that used a double can have no
// children that use it, and because the environment steers the doubles.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "check.h"

namespace isolated {

using Environment = std::vector<std::pair<std::string, std::string>>;

// ThreadSanitizer's runtime does not live with fork() in a program with threads.
#if defined(__SANITIZE_THREAD__)
constexpr bool kCanFork = false;
#else
constexpr bool kCanFork = true;
#endif

inline pid_t start(const std::function<void()>& body, const Environment& environment = {}, unsigned seconds = 60) {
  std::cout.flush();
  const pid_t pid = fork();
  if (pid != 0) return pid;
  alarm(seconds);
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  check::failures = 0;
  check::shown_until = 20;
  check::guarded("child", body);
  std::cerr.flush();
  _exit(check::failures == 0 ? 0 : 1);
}

inline int wait(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

// Runs the body in a process of its own, which has to pass.
inline void run(const std::function<void()>& body, const Environment& environment = {}) {
  if (kCanFork) {
    CHECK_EQ(wait(start(body, environment)), 0);
    return;
  }
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  body();
  for (const auto& [name, value] : environment) unsetenv(name.c_str());
}

// Memory that processes forked later share with this one.
template <class T>
struct Shared {
  Shared() {
    void* const at = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    value = new (at) T();
  }
  ~Shared() { munmap(value, sizeof(T)); }
  T* operator->() const { return value; }
  T* value;
};

// What all ranks of a test need from one of them.
struct Board {
  std::atomic<bool> ready{false};
  std::atomic<int> arrived{0};
  char identity[4108];

  // Rank 0 makes it, the others wait for it.
  void share(int rank, void* own, size_t bytes, const std::function<void()>& make) {
    if (rank == 0) {
      make();
      std::memcpy(identity, own, bytes);
      ready = true;
    } else {
      while (!ready) usleep(1000);
      std::memcpy(own, identity, bytes);
    }
  }
  // Waits until n ranks have come here.
  void meet(int n) {
    const int round = arrived++ / n;
    while (arrived < (round + 1) * n) usleep(200);
  }
};

// Runs body(rank, board) for n ranks: as threads of one process, and as processes.
inline void as_threads(int n, const std::function<void(int, Board&)>& body, const Environment& environment = {}) {
  run(
      [&] {
        Board board;
        check::threads(n, [&](int rank) { body(rank, board); });
      },
      environment);
}

inline void as_processes(int n, const std::function<void(int, Board&)>& body, const Environment& environment = {}) {
  if (!kCanFork) return;
  const Shared<Board> board;
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < n; ++rank) ranks.push_back(start([&] { body(rank, *board.value); }, environment));
  for (const pid_t pid : ranks) CHECK_EQ(wait(pid), 0);
}

inline void everywhere(int n, const std::function<void(int, Board&)>& body, const Environment& environment = {}) {
  as_threads(n, body, environment);
  as_processes(n, body, environment);
}

inline bool contains(const char* text, const std::string& part) {
  return text && std::string(text).find(part) != std::string::npos;
}

}  // namespace isolated
