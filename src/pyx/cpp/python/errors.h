// Converts C++ exceptions to Python errors.
#pragma once

#include <Python.h>

#include <cstring>
#include <exception>
#include <new>

#include "a2a/types.h"

namespace a2a_py {

// The Python class of each a2a::Code, in each module that throws them.
inline PyObject* error_class[8];

// Sets the classes: a tuple in the order of a2a::Code, which starts at 1. Call once, when the module is imported.
inline void set_error_classes(PyObject* classes) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(classes); ++i) {
    error_class[i + 1] = Py_NewRef(PyTuple_GET_ITEM(classes, i));
  }
}

// Sets the Python error for a C++ exception; all go through it. Requires the GIL, while an exception is being
// handled. A message may hold text of a peer or of an argument: bytes that are not UTF-8 are escaped.
inline void set_error(a2a::Code code, const char* text) {
  PyObject* message = PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)), "backslashreplace");
  if (message == nullptr) return;
  PyErr_SetObject(error_class[static_cast<int>(code)], message);
  Py_DECREF(message);
}

// Turns the C++ exception that is being handled into a Python error.
inline void raise_current() {
  try {
    throw;
  } catch (const a2a::Error& error) {
    set_error(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    set_error(a2a::Code::backend, error.what());
  }
}

}  // namespace a2a_py
