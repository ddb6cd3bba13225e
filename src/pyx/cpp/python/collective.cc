#include "cpp/python/collective.h"

#include <structmember.h>

#include <cstddef>

namespace a2a_py {

namespace {

// A function around another one, which adds hardly any time to a valid call. Python checks arguments against the
// signature before the first line of the function runs, so only code outside of the function can tell the peers of
// that.
struct Collective {
  PyObject_HEAD vectorcallfunc call;
  PyObject* wrapped;
};

// Tells the peers of the error that is set, until this thread has told them `end` times. Chains what a signal
// handler raises meanwhile.
void tell(PyObject* wrapped, PyObject* const* args, Py_ssize_t count, PyObject* names, uint64_t end) {
  PyObject *type, *error, *trace;
  PyErr_Fetch(&type, &error, &trace);
  PyErr_NormalizeException(&type, &error, &trace);
  if (trace != nullptr && error != nullptr) PyException_SetTraceback(error, trace);
  count += names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  for (uint64_t before = end; error != nullptr && scope.operations < end && scope.operations != before;) {
    before = scope.operations;
    PyObject* const interrupt = tell_peers(wrapped, args, count, error);
    if (interrupt == nullptr) continue;
    PyException_SetContext(interrupt, error);  // takes the reference
    error = interrupt;
    Py_XDECREF(type);
    type = Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(error)));
    Py_XDECREF(trace);
    trace = PyException_GetTraceback(error);
  }
  PyErr_Restore(type, error, trace);
}

// Signal handlers run between two instructions of Python, so only code outside of the function can tell the peers
// whatever happens in it.
PyObject* collective_call(PyObject* self, PyObject* const* args, size_t count, PyObject* names) {
  PyObject* const wrapped = reinterpret_cast<Collective*>(self)->wrapped;
  const uint64_t outer_begin = scope.begin, outer_end = scope.end;
  const bool outer_together = scope.together;
  const uint64_t begin = scope.begin = scope.operations;
  scope.end = begin + 1;
  scope.together = false;
  PyObject* const result = PyObject_Vectorcall(wrapped, args, count, names);
  const uint64_t end = scope.end;
  const bool together = scope.together;
  scope.begin = outer_begin;
  scope.end = outer_end;
  scope.together = outer_together;
  if (result != nullptr || scope.operations >= end) return result;
  const bool all_stop = !together && scope.operations != begin && scope.failed == scope.operations;
  if (!all_stop) tell(wrapped, args, PyVectorcall_NARGS(count), names, together ? end : scope.operations + 1);
  return nullptr;
}

PyObject* collective_bind(PyObject* self, PyObject* object, PyObject*) {
  return object == nullptr ? Py_NewRef(self) : PyMethod_New(self, object);
}

// All attributes, such as its name and documentation, are those of the function.
PyObject* collective_attribute(PyObject* self, PyObject* name) {
  if (PyObject* const own = PyObject_GenericGetAttr(self, name)) return own;
  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return nullptr;
  PyErr_Clear();
  return PyObject_GetAttr(reinterpret_cast<Collective*>(self)->wrapped, name);
}

PyObject* collective_doc(PyObject* self, void*) {
  return PyObject_GetAttrString(reinterpret_cast<Collective*>(self)->wrapped, "__doc__");
}

PyObject* collective_reduce(PyObject* self, PyObject*) {
  return PyObject_GetAttrString(reinterpret_cast<Collective*>(self)->wrapped, "__qualname__");
}

int collective_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<Collective*>(self)->wrapped);
  return 0;
}

void collective_free(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  Py_XDECREF(reinterpret_cast<Collective*>(self)->wrapped);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef collective_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Collective, call), READONLY, nullptr},
                                    {"__wrapped__", T_OBJECT_EX, offsetof(Collective, wrapped), READONLY, nullptr},
                                    {}};
PyGetSetDef collective_values[] = {{"__doc__", collective_doc, nullptr, nullptr, nullptr}, {}};
PyMethodDef collective_methods[] = {{"__reduce__", collective_reduce, METH_NOARGS, nullptr}, {}};
PyType_Slot collective_slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                  {Py_tp_descr_get, reinterpret_cast<void*>(collective_bind)},
                                  {Py_tp_getattro, reinterpret_cast<void*>(collective_attribute)},
                                  {Py_tp_traverse, reinterpret_cast<void*>(collective_traverse)},
                                  {Py_tp_dealloc, reinterpret_cast<void*>(collective_free)},
                                  {Py_tp_members, collective_members},
                                  {Py_tp_getset, collective_values},
                                  {Py_tp_methods, collective_methods},
                                  {0, nullptr}};
PyType_Spec collective_spec = {"a2a._core.Collective", sizeof(Collective), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                                   Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                               collective_slots};

}  // namespace

PyObject* make_collective(PyObject* type, PyObject* wrapped) {
  auto* const made = PyObject_GC_New(Collective, reinterpret_cast<PyTypeObject*>(type));
  if (made == nullptr) return nullptr;
  made->call = collective_call;
  made->wrapped = Py_NewRef(wrapped);
  PyObject_GC_Track(reinterpret_cast<PyObject*>(made));
  return reinterpret_cast<PyObject*>(made);
}

PyObject* make_collective_type() { return PyType_FromSpec(&collective_spec); }

}  // namespace a2a_py
