# The declarations of a2a/atb.h for the binding.
from libc.stdint cimport int64_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from a2a cimport CountList, CppCommunicator, CppWork, raise_current


cdef extern from "operation.h":
    cdef cppclass AtbParam "a2a_py::AtbParam":
        int rank
        int rankSize
        int rankRoot
        CountList sendCounts
        CountList sdispls
        CountList recvCounts
        CountList rdispls
        string backend
        void* hcclComm
        string rankTableFile
        string commDomain
        unsigned char rsv[64]

    cdef cppclass AtbDesc "a2a::atb::TensorDesc":
        pass

    cdef cppclass AtbMeeting "a2a::atb::Meeting":
        int rank
        int size
        string job
        cbool over_mpi
        cbool needed

    cdef cppclass Atb "a2a_py::Atb":
        int create(const AtbParam&, double) except +raise_current nogil
        string name() except +raise_current
        int inputs()
        int outputs()
        int infer(const vector[AtbDesc]&, int64_t&) except +raise_current
        int meeting(AtbMeeting&) except +raise_current nogil
        int join(shared_ptr[CppCommunicator]) except +raise_current nogil
        int setup(const AtbDesc&, void*, int64_t, void*, void*) except +raise_current nogil
        cbool ordered_by_stream()
        int start(shared_ptr[CppWork]&) except +raise_current nogil
        int refuse(const string&) except +raise_current nogil

    void set_comm_mode "a2a_py::set_comm_mode"(AtbParam&, int)
    AtbDesc atb_desc "a2a_py::atb_desc"(int, int, const int64_t*)
    int failure_code "a2a_py::failure_code"()
    string failure_text "a2a_py::failure_text"() except +raise_current
    string status_name "a2a_py::status_name"(int) except +raise_current

    cdef cppclass RankPlace "a2a::atb::RankPlace":
        string server_id
        string host_ip
        string device_id
        string device_ip
        string super_device_id
        string super_pod_id

    cdef cppclass RankTable "a2a::atb::RankTable":
        string version
        vector[RankPlace] ranks
        string identity() except +raise_current

    RankTable cpp_read_rank_table "a2a::atb::read_rank_table"(const string&) except +raise_current nogil
