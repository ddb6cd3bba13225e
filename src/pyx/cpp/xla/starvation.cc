#include "cpp/xla/starvation.h"

#include <Python.h>

#include <atomic>
#include <chrono>
#include <cstdint>

#include "cpp/python/interrupts.h"

namespace a2a_py::xla {

namespace {

using Clock = std::chrono::steady_clock;

PyObject* check = nullptr;
std::atomic<int> waiting{0};
std::atomic<int64_t> looked{0};  // when a wait began or ended, or somebody asked

int64_t now() { return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch()).count(); }

bool ask() {
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject* answer = check == nullptr ? nullptr : PyObject_CallFunction(check, "i", waiting.load());
  const bool starves = answer != nullptr && PyObject_IsTrue(answer) == 1;
  PyErr_Clear();
  Py_XDECREF(answer);
  PyGILState_Release(state);
  return starves;
}

}  // namespace

void set_starvation_check(PyObject* function) {
  Py_INCREF(function);
  Py_XSETREF(check, function);
}

PoolWait::PoolWait() : counts_(PyGILState_GetThisThreadState() == nullptr) {
  if (!counts_) return;
  ++waiting;
  looked = now();
}

PoolWait::~PoolWait() {
  if (!counts_) return;
  --waiting;
  looked = now();
}

bool PoolWait::starves() {
  constexpr int64_t kMilliseconds = 1000;
  int64_t last = looked;
  const int64_t here = now();
  if (!counts_ || here - last < kMilliseconds || !looked.compare_exchange_strong(last, here)) return false;
  return in_python(ask);
}

}  // namespace a2a_py::xla
