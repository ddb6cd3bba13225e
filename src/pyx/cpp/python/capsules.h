// Capsules, in which Python programs hand over managed tensors of DLPack.
#pragma once

#include <Python.h>
#include <dlpack/dlpack.h>

namespace a2a_py {

// The destructor of a capsule runs the deleter only when no consumer has taken the tensor and renamed the capsule.
template <class Managed>
void release_unused(PyObject* capsule, const char* name) {
  if (!PyCapsule_IsValid(capsule, name)) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  if (!managed->deleter) return;
  PyObject *type, *value, *traceback;  // A destructor must not change an exception that is being raised.
  PyErr_Fetch(&type, &value, &traceback);
  managed->deleter(managed);
  PyErr_Restore(type, value, traceback);
}

// Both return a new capsule that owns the managed tensor, or nullptr with an exception set and the tensor released.
inline PyObject* to_capsule(DLManagedTensorVersioned* managed) {
  PyObject* capsule = PyCapsule_New(managed, "dltensor_versioned", [](PyObject* self) {
    release_unused<DLManagedTensorVersioned>(self, "dltensor_versioned");
  });
  if (!capsule && managed->deleter) managed->deleter(managed);
  return capsule;
}

inline PyObject* to_capsule(DLManagedTensor* managed) {
  PyObject* capsule =
      PyCapsule_New(managed, "dltensor", [](PyObject* self) { release_unused<DLManagedTensor>(self, "dltensor"); });
  if (!capsule && managed->deleter) managed->deleter(managed);
  return capsule;
}

}  // namespace a2a_py
