#include "cpp/xla/interrupt.h"

#include <Python.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "cpp/python/interrupts.h"

namespace a2a_py::xla {

namespace {

std::atomic<unsigned long> seen{0};
std::mutex watching;
int watches = 0;
struct sigaction python_action;  // what is called on

void notice(int number, siginfo_t* info, void* context) {
  ++seen;
  if ((python_action.sa_flags & SA_SIGINFO) != 0) {
    python_action.sa_sigaction(number, info, context);
  } else {
    python_action.sa_handler(number);
  }
}

bool is_function(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

// Whether SIGINT has the handler of Python that raises KeyboardInterrupt. A program's own may want to go on.
bool has_usual_handler() {
  PyObject* module = PyImport_ImportModule("signal");
  PyObject* current = module == nullptr ? nullptr : PyObject_CallMethod(module, "getsignal", "i", SIGINT);
  PyObject* usual = current == nullptr ? nullptr : PyObject_GetAttrString(module, "default_int_handler");
  const bool same = usual != nullptr && current == usual;
  PyErr_Clear();
  Py_XDECREF(usual);
  Py_XDECREF(current);
  Py_XDECREF(module);
  return same;
}

// XLA may run a program in the thread that calls it. If that is the main thread, Python's handlers run here; what they
// raise comes once more when the program has ended.
bool raises_here() {
  const PyGILState_STATE state = PyGILState_Ensure();
  bool raises;
  if (::gettid() == ::getpid()) {
    raises = PyErr_CheckSignals() != 0;
    PyErr_Clear();
    if (raises) PyErr_SetInterrupt();
  } else {
    raises = has_usual_handler();
  }
  PyGILState_Release(state);
  return raises;
}

}  // namespace

InterruptWatch::InterruptWatch() : before_(seen) {
  const std::scoped_lock lock(watching);
  if (watches++ > 0) return;
  struct sigaction now;
  if (sigaction(SIGINT, nullptr, &now) != 0 || !is_function(now)) return;
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == notice) return;
  python_action = now;
  now.sa_sigaction = notice;
  now.sa_flags |= SA_SIGINFO;
  sigaction(SIGINT, &now, nullptr);
}

InterruptWatch::~InterruptWatch() {
  const std::scoped_lock lock(watching);
  if (--watches > 0) return;
  struct sigaction now;
  if (sigaction(SIGINT, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == notice) sigaction(SIGINT, &python_action, nullptr);
}

bool InterruptWatch::interrupted() {
  if (seen == before_) return false;
  before_ = seen;
  return in_python(raises_here);
}

}  // namespace a2a_py::xla
