// What decides how bytes travel, of this machine and of the user's settings.
#include "transport/shm/policy/machine.h"

#include "check.h"
#include "environment.h"

namespace {

using namespace a2a;
using namespace a2a::shm;
using check::Variable;

TEST("variables of the environment set the thresholds, and must be numbers of bytes") {
  const Surroundings around{.ranks = 2, .cpus = 2};
  {
    const Variable cma("A2A_SHM_CMA_MIN", "5"), direct("A2A_SHM_DIRECT_MIN", "7"), past("A2A_SHM_STREAM_MIN", "9");
    const Machine machine = Machine::here(around);
    CHECK(machine.cma_min == 5 && machine.direct_min == 7 && machine.stream_min == 9);
    CHECK(machine.cache > 0);
  }
  {
    CHECK(!Machine::here(around).spread);  // no thread is moved unless that is asked for
    const Variable spread("A2A_SHM_SPREAD", "1");
    CHECK(Machine::here(around).spread);
  }
  for (const char* wrong : {"-1", "1M", "many", "18446744073709551616"}) {
    const Variable cma("A2A_SHM_CMA_MIN", wrong);
    CHECK_THROWS(Code::invalid_argument, "is not a number of bytes", Machine::here(around));
  }
}

TEST("ranks are oversubscribed when they are more than the CPUs that they may use") {
  CHECK((!Surroundings{.ranks = 2, .cpus = 2}.oversubscribed()));
  CHECK((Surroundings{.ranks = 3, .cpus = 2}.oversubscribed()));
}

}  // namespace
