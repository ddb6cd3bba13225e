# Calls that block in C++ for long. Ctrl-C ends the wait for them.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from a2a cimport Bootstrap, Call, Check, CppCommunicator, CppEndpoint, Memory, When, raise_current, raise_interrupted


cdef extern from "cpp/background.h":
    ctypedef shared_ptr[CppCommunicator] CommPtr "a2a_py::CommPtr"
    ctypedef shared_ptr[Bootstrap] BootstrapPtr "a2a_py::BootstrapPtr"
    ctypedef shared_ptr[Background] Task "a2a_py::Task"

    cdef cppclass Outcome "a2a_py::Outcome":
        CommPtr communicator
        BootstrapPtr bootstrap
        vector[string] strings

    cdef cppclass Background "a2a_py::Background":
        void start() except +raise_current
        cbool wait_slice() except +raise_current nogil
        void refuse_afterwards(const CommPtr&, const Call&, const string&) except +raise_current nogil
        Outcome result() except +raise_current

    Task task_split "a2a_py::split"(CommPtr, int, int, When) except +raise_current
    Task task_group "a2a_py::group"(CommPtr, vector[int], When) except +raise_current
    Task task_shrink "a2a_py::shrink"(CommPtr, When) except +raise_current
    Task task_connect "a2a_py::connect"(CommPtr, Memory, int, When) except +raise_current
    Task task_close "a2a_py::close"(CommPtr, When) except +raise_current
    Task task_allgather_bytes "a2a_py::allgather_bytes"(CommPtr, string, When) except +raise_current


cdef extern from "cpp/python/blocking.h":
    BootstrapPtr join_job "a2a_py::join_job"(
        int, int, const string&, const When&) except +raise_interrupted nogil
    BootstrapPtr join_tcp "a2a_py::join_tcp"(
        int, int, const string&, const string&, const string&, const When&) except +raise_interrupted nogil
    CommPtr connect_endpoint "a2a_py::connect_endpoint"(
        CppEndpoint&, const vector[string]&, int64_t, const When&, vector[int]&) except +raise_interrupted nogil
    vector[string] allgather_here "a2a_py::allgather_here"(
        Bootstrap&, const string&, const When&) except +raise_interrupted nogil
    BootstrapPtr cpp_mpi_bootstrap "a2a_py::mpi_bootstrap"(
        cbool, int, const string&, const When&) except +raise_interrupted nogil


cdef extern from "cpp/python/callback_bootstrap.h":
    cdef cppclass Between "a2a_py::Between":
        BootstrapPtr network
        vector[int] processes
        string host

    CommPtr create_communicator "a2a_py::create"(
        int, int, double, Check, const When&, cbool (*)(PyObject*, const string&, vector[string]&) noexcept nogil,
        cbool (*)(PyObject*) noexcept nogil, PyObject*, Between
    ) except +raise_interrupted nogil
