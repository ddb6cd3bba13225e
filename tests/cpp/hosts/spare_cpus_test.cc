// Who gets a progress thread, in words.
#include "transport/hosts/spare_cpus.h"

#include <cstdlib>

#include "a2a/libraries.h"
#include "a2a/types.h"
#include "check.h"

namespace {

using namespace a2a;

TEST("each rank needs a CPU besides its own") {
  CHECK(hosts::has_spare_cpus(1, 2) && hosts::has_spare_cpus(4, 9));
  CHECK(!hosts::has_spare_cpus(1, 1) && !hosts::has_spare_cpus(4, 7));
  CHECK(hosts::cpus_of_machine() >= 1);
}

TEST("the choice of a progress thread, and why") {
  const auto choice = [](const char* wish, int ranks, int cpus, int hosts) {
    setenv("A2A_PROGRESS_THREAD", wish, 1);
    return progress_thread_choice(ranks, cpus, hosts);
  };
  for (const char* const automatic : {"", "auto", "AUTO"}) {
    CHECK_EQ(choice(automatic, 2, 4, 3),
             "yes, except over MPI: 2 ranks of a host and 4 CPUs, so each rank has one to spare");
    CHECK_EQ(choice(automatic, 3, 4, 3),
             "no: 3 ranks of a host and 4 CPUs, so none is to spare; A2A_PROGRESS_THREAD=1 starts it");
    CHECK_EQ(choice(automatic, 2, 64, 1), "no: the ranks share a host; A2A_PROGRESS_THREAD=1 starts it");
  }
  CHECK_EQ(choice("yes", 3, 1, 1), "yes: A2A_PROGRESS_THREAD=1");
  CHECK_EQ(choice("off", 1, 64, 8), "no: A2A_PROGRESS_THREAD=0");
  CHECK_THROWS(Code::invalid_argument, "A2A_PROGRESS_THREAD=maybe", choice("maybe", 1, 1, 2));
  unsetenv("A2A_PROGRESS_THREAD");
}

}  // namespace
