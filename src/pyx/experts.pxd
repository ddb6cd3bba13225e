# The declarations of a2a/experts.h and cpp/experts.h.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.vector cimport vector

from a2a cimport Call, PlanPtr, raise_current


cdef extern from "cpp/experts.h":
    cdef cppclass CppPlacement "a2a::ExpertPlacement":
        int64_t experts()
        int32_t experts_on(int)
        uint64_t hash() const

    cdef cppclass CppRouting "a2a::Routing":
        int64_t tokens()
        int top_k()
        int64_t rows()
        size_t told_bytes(int64_t, cbool)
        void sources(int64_t*)
        void local_experts(int64_t*)
        void weights(float*)

    ctypedef shared_ptr[const CppPlacement] PlacementPtr "a2a_py::PlacementPtr"
    ctypedef shared_ptr[CppRouting] RoutingPtr "a2a_py::RoutingPtr"

    PlacementPtr place_blocks "a2a_py::place_blocks"(int, int64_t) except +raise_current
    PlacementPtr place "a2a_py::place"(
        int, const vector[vector[int]]&, const vector[int]&, const vector[uint8_t]&, cbool) except +raise_current
    RoutingPtr make_routing "a2a_py::make_routing"(
        const PlacementPtr&, int, const vector[int64_t]&, int64_t, int, cbool, int64_t) except +raise_current nogil
    void write_routes "a2a_py::write_routes"(
        const CppRouting&, int, const vector[float]&, vector[int64_t]&, vector[char]&) except +raise_current nogil
    void read_routes "a2a_py::read_routes"(
        CppRouting&, const vector[int64_t]&, cbool, const vector[char]&) except +raise_current nogil
    vector[int64_t] sent_counts "a2a_py::sent_counts"(const CppRouting&)
    vector[int64_t] dropped_choices "a2a_py::dropped_choices"(const CppRouting&)
    vector[int64_t] row_counts "a2a_py::row_counts"(const CppRouting&)
    vector[int64_t] row_begins "a2a_py::row_begins"(const CppRouting&)
    PlanPtr plan_dispatch "a2a_py::plan_dispatch"(
        const CppRouting&, const vector[size_t]&, const vector[uint32_t]&) except +raise_current nogil
    PlanPtr plan_combine "a2a_py::plan_combine"(const CppRouting&, size_t, cbool) except +raise_current nogil
    PlanPtr plan_give_back "a2a_py::plan_give_back"(const CppRouting&, size_t) except +raise_current nogil
    void clear_padding "a2a_py::clear_padding"(const CppRouting&, char*, size_t) except +raise_current nogil
    void set_bias "a2a_py::set_bias"(Call&, size_t, const void*)
    void set_weights "a2a_py::set_weights"(Call&, const float*)
