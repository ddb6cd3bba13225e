#include "a2a/work.h"

namespace a2a {

void Work::wait(Deadline deadline) {
  while (!wait_until(deadline)) {
    if (deadline.passed()) throw Error(Code::timeout, "the wait timed out; the operation goes on");
  }
}

}  // namespace a2a
