# The declarations of cpp/reshard.h.
from libc.stdint cimport int64_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.optional cimport optional
from libcpp.vector cimport vector

from a2a cimport CppCommunicator, DType, Fold, ReshardPtr, raise_current


cdef extern from "a2a/sharding.h":
    cdef cppclass CppPlacement "a2a::Placement":
        pass


cdef extern from "cpp/reshard.h":
    ctypedef vector[int64_t] Numbers "a2a_py::Numbers"

    cdef cppclass ShardingPtr "a2a_py::ShardingPtr":
        cbool operator bool()

    cdef cppclass BoxList "a2a_py::BoxList":
        BoxList(size_t) except +raise_current
        void set(size_t, const Numbers&, const Numbers&) except +raise_current
        ShardingPtr sharding() except +raise_current

    cdef cppclass ReshardingList "a2a_py::ReshardingList":
        void add(const Numbers&, const ShardingPtr&, const ShardingPtr&, DType) except +raise_current
        ReshardPtr plan(const CppCommunicator&, cbool) except +raise_current nogil
        vector[uint64_t] matrices(int, const vector[int]&) except +raise_current nogil

    void add_placement "a2a_py::add_placement"(vector[CppPlacement]&, int, int, Fold) except +raise_current
    ShardingPtr mesh_sharding "a2a_py::mesh_sharding"(
        const Numbers&, const vector[int]&, const vector[CppPlacement]&) except +raise_current
    optional[Numbers] box_of "a2a_py::box_of"(const ShardingPtr&, int, const Numbers&) except +raise_current
    size_t operations_of "a2a_py::operations_of"(const ReshardPtr&)
    vector[uint64_t] bytes_to "a2a_py::bytes_to"(const ReshardPtr&) except +raise_current
    optional[Numbers] src_box "a2a_py::src_box"(const ReshardPtr&, size_t) except +raise_current
    optional[Numbers] dst_box "a2a_py::dst_box"(const ReshardPtr&, size_t) except +raise_current
