# The declarations of cpp/python/collective.h.
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t


cdef extern from "cpp/python/collective.h":
    PyObject* (*tell_peers "a2a_py::tell_peers")(PyObject*, PyObject* const*, Py_ssize_t, PyObject*) noexcept

    void note_told "a2a_py::note_told"() noexcept nogil
    void note_failed "a2a_py::note_failed"() noexcept nogil
    void takes_operations "a2a_py::takes"(uint64_t operations, bint together) noexcept nogil
    uint64_t count_told "a2a_py::count_told"() noexcept nogil
    object make_collective_type "a2a_py::make_collective_type"()
    object make_collective "a2a_py::make_collective"(object kind, object wrapped)
