#include "transport/hosts/spare_cpus.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "a2a/libraries.h"
#include "runtime/progress_thread.h"

size_t a2a::hosts::cpus_of_machine() { return static_cast<size_t>(std::max(::sysconf(_SC_NPROCESSORS_ONLN), 1l)); }

std::string a2a::progress_thread_choice(int ranks, int cpus, int hosts) {
  switch (progress_thread_wish()) {
    case ThreadWish::always:
      return "yes: A2A_PROGRESS_THREAD=1";
    case ThreadWish::never:
      return "no: A2A_PROGRESS_THREAD=0";
    default:
      break;
  }
  if (hosts < 2) return "no: the ranks share a host; A2A_PROGRESS_THREAD=1 starts it";
  const std::string of_host = std::to_string(ranks) + " ranks of a host and " + std::to_string(cpus) + " CPUs";
  if (hosts::has_spare_cpus(static_cast<size_t>(ranks), static_cast<size_t>(cpus))) {
    return "yes, except over MPI: " + of_host + ", so each rank has one to spare";
  }
  return "no: " + of_host + ", so none is to spare; A2A_PROGRESS_THREAD=1 starts it";
}
