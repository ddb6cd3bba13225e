// Memory that a Python object owns.
#pragma once

#include <Python.h>

#include "cpp/python/interrupts.h"
#include "cpp/shared_memory.h"

namespace a2a_py {

// Returns memory that holds a reference to the object. Its last owner may be any thread, without the GIL. Requires the
// GIL.
inline SharedMemory hold_object(PyObject* owner) {
  Py_INCREF(owner);
  return SharedMemory(owner, [](void* object) {
    if (!Py_IsInitialized()) return;
    in_python([object] {
      const PyGILState_STATE state = PyGILState_Ensure();
      Py_DECREF(static_cast<PyObject*>(object));
      PyGILState_Release(state);
      return true;
    });
  });
}

}  // namespace a2a_py
