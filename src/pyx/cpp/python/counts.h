// Counts from Python objects.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

#include "cpp/exchange.h"

namespace a2a_py {

// Appends the entries of a list or tuple if all are plain ints of 64 bits, and returns whether they are. Without
// the GIL another thread may change the list meanwhile, so there other code does it, which holds a reference to
// each entry.
inline bool append_plain_ints(PyObject* items, CountList& counts) {
#ifndef Py_GIL_DISABLED
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(items);
  PyObject* const* const entries = PySequence_Fast_ITEMS(items);
  counts.resize(static_cast<size_t>(size));
  for (Py_ssize_t i = 0; i < size; ++i) {
    int overflow = 0;
    if (!PyLong_CheckExact(entries[i])) return false;
    counts[static_cast<size_t>(i)] = PyLong_AsLongLongAndOverflow(entries[i], &overflow);
    if (overflow != 0) return false;
  }
  return true;
#else
  return false;
#endif
}

}  // namespace a2a_py
