#include "cpp/python/disallow_instantiation.h"

namespace a2a_py {

namespace {

PyObject* advice_by_type;  // type -> what to call instead

PyObject* refuse_new(PyTypeObject* type, PyObject*, PyObject*) {
  for (PyTypeObject* base = type; base != nullptr; base = base->tp_base) {
    PyObject* advice = PyDict_GetItemWithError(advice_by_type, reinterpret_cast<PyObject*>(base));
    if (advice != nullptr) {
      PyErr_SetObject(PyExc_TypeError, advice);
      return nullptr;
    }
    if (PyErr_Occurred()) return nullptr;
  }
  return PyErr_Format(PyExc_TypeError, "cannot create '%s' objects", type->tp_name);
}

}  // namespace

void disallow_instantiation(PyObject* advice) {
  advice_by_type = Py_NewRef(advice);
  PyObject *type, *text;
  for (Py_ssize_t at = 0; PyDict_Next(advice, &at, &type, &text);) {
    auto* refused = reinterpret_cast<PyTypeObject*>(type);
    refused->tp_new = refuse_new;
    refused->tp_vectorcall = nullptr;  // it would make an object without a call of tp_new
    PyType_Modified(refused);
  }
}

}  // namespace a2a_py
