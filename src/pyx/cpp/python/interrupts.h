// Signals, and the end of the interpreter, while C++ code waits without the GIL.
#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "a2a/work.h"
#include "cpp/python/errors.h"

namespace a2a_py {

// The exception that a signal handler raised in this thread while C++ code waited. Needs the GIL.
inline constinit thread_local PyObject* pending_interrupt = nullptr;

// The threads that are in in_python(), and the one that is about to delete the interpreter.
inline std::atomic<int> threads_in_python{0};
inline std::atomic<std::thread::id> ending_thread{};

// Calls code that takes the GIL while C++ code waits. At exit CPython before 3.14 ends a thread that asks for the
// GIL by unwinding its stack, and the process ends when C++ code catches that, as Cython's and the core's does.
// Instead the thread stays here until the process has ended, as it does from 3.14 on. A thread that asks for the
// GIL of an interpreter that was deleted would crash, so it stays here, too.
template <class Call>
auto in_python(Call call) {
  struct Inside {
    Inside() { ++threads_in_python; }
    ~Inside() { --threads_in_python; }
  };
  try {
    const Inside inside;
    const std::thread::id ending = ending_thread;
    if (ending == std::thread::id() || ending == std::this_thread::get_id()) return call();
  } catch (const abi::__forced_unwind&) {
    for (;;) ::pause();  // the end of this handler would end the process
  }
  for (;;) ::pause();
}

// Call while the interpreter ends: from here on no thread asks for its GIL. Waits for those that already ask, which
// CPython ends, but not longer than 200 ms: from 3.14 on they stay where they are.
inline void end_python() {
  using namespace std::chrono_literals;
  ending_thread = std::this_thread::get_id();
  const auto until = std::chrono::steady_clock::now() + 200ms;
  while (threads_in_python != 0 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
}

// Runs Python's signal handlers. Returns whether one of them wants the call to end.
inline bool look_for_signals_here() {
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool raised = PyErr_CheckSignals() != 0;
  if (raised) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    Py_XDECREF(pending_interrupt);
    pending_interrupt = value;
  }
  PyGILState_Release(state);
  return raised;
}
inline bool interrupted() { return in_python(look_for_signals_here); }

// Raises that exception, if there is one, and returns -1; otherwise returns 0.
inline int raise_pending() {
  if (pending_interrupt == nullptr) return 0;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(pending_interrupt)), pending_interrupt);
  Py_CLEAR(pending_interrupt);
  return -1;
}

// For C++ code that a signal ended: raises the exception of the handler.
inline void raise_interrupted() {
  try {
    throw;
  } catch (const a2a::Interrupted&) {
    if (raise_pending() == 0) raise_current();
  } catch (...) {
    raise_current();
  }
}

}  // namespace a2a_py
