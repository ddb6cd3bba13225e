// Points at which tests/faults can end or stop a rank. They exist only with -DA2A_FAULTS=ON.
#pragma once

#ifdef A2A_FAULTS
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#endif

namespace a2a {

#ifdef A2A_FAULTS

// A2A_FAULT=point:count:signal makes this process send itself the signal when it passes that point for the count-th
// time. Passes count from the first one that matches the variable, which is read at every pass, so that a rank can set
// it after it has met the others.
inline void faultpoint(std::string_view point) {
  static std::atomic<long> passes{0};
  char wanted[32];
  long count = 0;
  int signal = 0;
  const char* plan = std::getenv("A2A_FAULT");
  if (plan == nullptr || std::sscanf(plan, "%31[^:]:%ld:%d", wanted, &count, &signal) != 3 || point != wanted) return;
  if (passes.fetch_add(1) + 1 == count) ::kill(::getpid(), signal);
}

#else

constexpr void faultpoint(const char*) {}

#endif

}  // namespace a2a
