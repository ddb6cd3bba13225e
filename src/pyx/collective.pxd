# The declarations of cpp/python/collective.h.
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t


cdef extern from "cpp/python/collective.h":
    PyObject* (*tell_peers "a2a_py::tell_peers")(PyObject*, PyObject* const*, Py_ssize_t, PyObject*) noexcept

    void count_operation "a2a_py::count_operation"() noexcept nogil
    void note_failed "a2a_py::note_failed"() noexcept nogil
    void takes_operations "a2a_py::takes"(uint64_t operations, bint together) noexcept nogil
    uint64_t operations_so_far "a2a_py::operations_so_far"() noexcept nogil
    object make_collective_type "a2a_py::make_collective_type"()
    object make_collective "a2a_py::make_collective"(object kind, object wrapped)
