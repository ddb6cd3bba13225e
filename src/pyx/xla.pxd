# The declarations of cpp/xla/calls.h.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from a2a cimport CppCommunicator, Exchange, raise_current


cdef extern from "cpp/xla/starvation.h" namespace "a2a_py::xla":
    void set_starvation_check "a2a_py::xla::set_starvation_check"(object)


cdef extern from "cpp/xla/calls.h" namespace "a2a_py::xla":
    enum class XlaKind "a2a_py::xla::Call::Kind":
        exchange
        in_place
        ragged
        send
        recv

    cdef cppclass XlaCall "a2a_py::xla::Call":
        XlaKind kind
        Exchange exchange
        size_t send_bytes, recv_bytes, send_elems, recv_elems
        int peer
        int64_t tag
        bint compared_by_all
        uint32_t agreement
        uint64_t program

    uint64_t keep_call "a2a_py::xla::keep_call"(
        const shared_ptr[CppCommunicator]&, const XlaCall&) except +raise_current
    void abort_xla_programs "a2a_py::xla::abort_programs"(
        const string&, const vector[uint64_t]&) except +raise_current nogil
    void* xla_handler_address "a2a_py::xla::handler"()
