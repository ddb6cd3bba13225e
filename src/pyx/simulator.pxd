# The declarations of a2a/simulator.h and cpp/simulator.h.
from libc.stdint cimport uint64_t
from libcpp.vector cimport vector

from a2a cimport raise_current


cdef extern from "a2a/simulator.h" namespace "a2a::simulator" nogil:
    cdef enum class Ports(unsigned char):
        single, shared

    cdef cppclass Cluster:
        int ranks, ranks_per_host
        double link, memory, latency, message, start
        Ports ports

    cdef cppclass SimulatedMessage "a2a::simulator::Transmission":
        int sender "from"
        int to
        uint64_t bytes
        double begin, end

    cdef cppclass SimulatedOutcome "a2a::simulator::Outcome":
        double seconds, bound
        vector[double] rank
        vector[double] sends "out"
        vector[double] receives "in"
        vector[SimulatedMessage] messages


cdef extern from "cpp/simulator.h" nogil:
    SimulatedOutcome cpp_simulate "a2a_py::simulate"(
        const Cluster&, int, const uint64_t*, size_t, size_t) except +raise_current
