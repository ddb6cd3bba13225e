// Shortens tracebacks: however many functions of this module an error leaves, they are one line. A2A_TRACEBACK=full
// shows all of them. One line remains, because exception handlers that Cython compiles expect a traceback.
#pragma once

#include <Python.h>
#include <frameobject.h>

#include <cstdlib>
#include <string_view>

namespace a2a_py {

inline bool full_tracebacks() {
  static const bool full = [] {
    const char* const word = std::getenv("A2A_TRACEBACK");
    return word != nullptr && std::string_view(word) == "full";
  }();
  return full;
}

inline PyCodeObject* traced_code(const char* file, const char* function, int line) {
  return full_tracebacks() ? PyCode_NewEmpty(file, function, line) : PyCode_NewEmpty("<a2a>", "core", line);
}

// Whether the latest line of the error's traceback is one of traced_code().
inline bool ends_here() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  bool ours = false;
  if (traceback != nullptr && PyTraceBack_Check(traceback)) {
    PyCodeObject* const code = PyFrame_GetCode(reinterpret_cast<PyTracebackObject*>(traceback)->tb_frame);
    ours = PyUnicode_CompareWithASCIIString(code->co_filename, "<a2a>") == 0;
    Py_DECREF(code);
  }
  PyErr_Restore(type, value, traceback);
  return ours;
}

// Called by Cython for each function that an error leaves.
inline int trace_back(PyFrameObject* frame) { return !full_tracebacks() && ends_here() ? 0 : PyTraceBack_Here(frame); }

}  // namespace a2a_py

// Code of Cython that follows calls these functions instead of CPython's.
#define PyCode_NewEmpty a2a_py::traced_code
#define PyTraceBack_Here a2a_py::trace_back
