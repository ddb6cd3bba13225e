// Ctrl-C while a thread of XLA waits for peers: the main thread waits for XLA then, and runs no signal handler of
// Python.
#pragma once

namespace a2a_py::xla {

// While it lives, SIGINT is noticed in addition to what it does otherwise.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  // Whether a SIGINT has come since, which the program takes for KeyboardInterrupt. Takes the GIL if one has come.
  bool interrupted();

 private:
  unsigned long before_;
};

}  // namespace a2a_py::xla
