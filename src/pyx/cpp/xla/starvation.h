// Ranks that are threads of one process, whose programs wait for each other in threads of XLA. Where as many wait as
// XLA has threads, the programs of the other ranks never begin.
#pragma once

struct _object;  // PyObject

namespace a2a_py::xla {

// Has `function(waiting)` called after a second in which that many threads of XLA have waited, and none has begun or
// ended a wait. It says whether programs are left for which XLA has no thread. Takes a reference. Requires the GIL.
void set_starvation_check(_object* function);

// The wait of this thread. Threads of Python do not count: XLA runs a program in the thread that starts it where it
// can.
class PoolWait {
 public:
  PoolWait();
  ~PoolWait();
  PoolWait(const PoolWait&) = delete;
  PoolWait& operator=(const PoolWait&) = delete;

  // Whether it cannot end. Takes the GIL once a second.
  bool starves();

 private:
  const bool counts_;
};

}  // namespace a2a_py::xla
