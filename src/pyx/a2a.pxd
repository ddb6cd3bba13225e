# The declarations of the C++ core for the bindings, and of their C++ code, which stands in cpp/.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.vector cimport vector

from layouts cimport KeptLayouts
from operations cimport Op


cdef extern from "cpp/python/errors.h":
    void raise_current "a2a_py::raise_current"()
    void set_error_classes "a2a_py::set_error_classes"(tuple)


cdef extern from "cpp/python/interrupts.h":
    void end_python "a2a_py::end_python"()
    void raise_interrupted "a2a_py::raise_interrupted"()
    int raise_pending "a2a_py::raise_pending"() except -1


cdef extern from "a2a/types.h" nogil:
    cdef cppclass DType "a2a::DType":
        uint8_t code
        uint8_t bits
        uint16_t lanes

    enum class Memory "a2a::Memory":
        host
        cuda
        npu

    enum class Fold "a2a::Fold":
        none
        sum
        prod
        min
        max
        avg
        band
        bor
        bxor
        premul_sum

    void require_defined "a2a::require_defined"(Fold, DType) except +raise_current
    string dtype_string "a2a::to_string"(DType) except +raise_current
    const char* memory_string "a2a::to_string"(Memory)

    cdef cppclass CppStream "a2a::Stream":
        void* handle


cdef extern from "a2a/work.h" nogil:
    cdef cppclass CppWork "a2a::Work":
        cbool done() except +raise_current
        cbool arrived(int) except +raise_current
        void order_before(CppStream) except +raise_current
        int source()


cdef extern from "a2a/host_facts.h" nogil:
    optional[double] cpp_cpu_quota "a2a::cpu_quota"() except +raise_current


cdef extern from "a2a/libraries.h" nogil:
    string library_for "a2a::library_for"(Memory) except +raise_current
    string mpi_library "a2a::mpi_library"() except +raise_current
    string ucx_library "a2a::ucx_library"() except +raise_current
    string cpp_network_choice "a2a::network_choice"() except +raise_current
    string cpp_progress_thread_choice "a2a::progress_thread_choice"(int, int, int) except +raise_current
    void add_library_directory "a2a::add_library_directory"(const string&) except +raise_current


cdef extern from "a2a/communicator.h" nogil:
    cbool recording "a2a::recording"()
    void set_call_site "a2a::set_call_site"(const string&) except +raise_current
    string cpp_metrics_text "a2a::metrics_text"() except +raise_current
    void cpp_describe_process "a2a::describe_process"(const string&, const string&) except +raise_current
    shared_ptr[void] cpp_show_meeting "a2a::show_meeting"(int, int, int)


cdef extern from "a2a/bootstrap.h" nogil:
    cdef cppclass GroupRank "a2a::GroupRank":
        int rank
        int size

    cdef cppclass Bootstrap "a2a::Bootstrap":
        optional[GroupRank] group_rank() except +raise_current

    optional[string] cpp_ended_rank "a2a::ended_rank"(const string&, int) except +raise_current
    string secret_from_environment "a2a::secret_from_environment"() except +raise_current
    vector[shared_ptr[Bootstrap]] cpp_thread_bootstraps "a2a::thread_bootstraps"(int) except +raise_current


cdef extern from "a2a/communicator.h" nogil:
    enum class Check "a2a::Check":
        off
        first
        always

    Check default_check "a2a::default_check"() except +raise_current

    uint64_t number_of_routing "a2a::number_of_routing"(uint64_t)

    cdef cppclass Call "a2a::Call":
        Op op
        DType dtype
        Memory memory
        size_t unit_bytes
        uint64_t plan
        When deadline
        int device
        CppStream stream
        cbool asynchronous
        Fold fold
        cbool in_place

    cdef cppclass HostFacts "a2a::HostFacts":
        int ranks
        int cpus
        cbool oversubscribed
        cbool cma
        int hosts
        uint64_t messages
        size_t direct_min
        size_t cma_min
        size_t stream_min

    cdef cppclass StageChoice "a2a::StageChoice":
        string collective
        string stages
        size_t from_ "from"
        string reason

    vector[StageChoice] cpp_stage_choices "a2a::stage_choices"(const vector[int]&) except +raise_current

    cdef cppclass WayOfBytes "a2a::WayOfBytes":
        string memory
        string way
        string reason

    cdef cppclass CppView "a2a::View":
        size_t bytes
        vector[int64_t] shape

    cdef cppclass CppViews "a2a::Views":
        shared_ptr[CppWork] work()
        int size()
        CppView view(int) except +raise_current
        void release()
        cbool released()

    cdef cppclass CommunicatorOptions "a2a::Communicator::Options":
        double timeout_seconds
        Check check

    cdef cppclass CppCommunicator "a2a::Communicator":
        int rank() except +raise_current
        int size() except +raise_current
        double timeout_seconds() except +raise_current
        void set_timeout_seconds(double seconds)
        uint64_t next_plan() except +raise_current
        uint64_t last_number() except +raise_current
        void show_call_site()
        void refuse(const Call&, string) except +raise_current
        shared_ptr[CppWork] send(const void*, size_t, int, int64_t, const Call&) except +raise_current
        shared_ptr[CppWork] recv(void*, size_t, int, int64_t, const Call&) except +raise_current
        void refuse_message(cbool, int, int64_t, string) except +raise_current
        void adopt(Memory, void*) except +raise_current
        void abort(string)
        cbool closed() except +raise_current
        cbool broken() except +raise_current
        HostFacts host_facts() except +raise_current
        vector[int] hosts() except +raise_current
        vector[WayOfBytes] host_ways(size_t bytes) except +raise_current
        vector[StageChoice] stage_choices() except +raise_current


cdef extern from "cpp/exchange.h":
    ctypedef vector[int64_t] CountList "a2a_py::CountList"

    cdef cppclass When "a2a_py::When":
        pass

    cdef cppclass PlanPtr "a2a_py::PlanPtr":
        cbool operator bool()

    cdef cppclass ReshardPtr "a2a_py::ReshardPtr":
        cbool operator bool()

    cdef cppclass Exchange "a2a_py::Exchange":
        PlanPtr plan
        ReshardPtr reshard
        size_t operation
        Call call
        KeptLayouts send_layouts
        KeptLayouts recv_layouts
        int split_axis
        int concat_axis
        vector[int64_t] send_shape
        vector[int64_t] recv_shape
        cbool listed
        const void* send
        void* recv
        vector[const void*] sends
        vector[void*] recvs

    When deadline_after "a2a_py::deadline_after"(double) nogil
    cbool has_passed "a2a_py::has_passed"(const When&)
    shared_ptr[CppWork] try_start "a2a_py::try_start"(CppCommunicator&, const Exchange&) except +raise_current
    shared_ptr[CppWork] cpp_start_message "a2a_py::start_message"(
        CppCommunicator&, cbool, void*, size_t, int, int64_t, const Call&, const KeptLayouts&
    ) except +raise_interrupted nogil


cdef extern from "cpp/call_counts.h":
    cdef cppclass CallCounts "a2a_py::CallCounts":
        CountList& to()
        CountList& to_displs()
        CountList& from_ "from"()
        CountList& from_displs()
        PlanPtr plan(int, int, size_t, size_t, size_t) except +raise_current


cdef extern from "cpp/plans.h":
    PlanPtr cpp_plan_alltoall_list "a2a_py::plan_alltoall_list"(
        int, int, const vector[size_t]&, const vector[size_t]&) except +raise_current
    PlanPtr cpp_plan_allgather "a2a_py::plan_allgather"(int, int, size_t) except +raise_current
    PlanPtr cpp_plan_global "a2a_py::plan_global"(
        cbool, int, int, size_t, const CountList&, const CountList&) except +raise_current
    PlanPtr cpp_plan_allreduce "a2a_py::plan_allreduce"(CppCommunicator&, size_t, size_t, Memory) except +raise_current
    PlanPtr cpp_plan_scan "a2a_py::plan_scan"(int, int, size_t, size_t, bint) except +raise_current
    PlanPtr cpp_plan_reduce_scatter "a2a_py::plan_reduce_scatter"(
        int, int, size_t, const CountList&) except +raise_current
    PlanPtr cpp_plan_reduce "a2a_py::plan_reduce"(int, int, int, size_t) except +raise_current
    PlanPtr compared_plan "a2a_py::compared"(const PlanPtr&, uint32_t) except +raise_current
    PlanPtr cpp_plan_broadcast "a2a_py::plan_broadcast"(int, int, int, size_t) except +raise_current
    PlanPtr cpp_plan_gather "a2a_py::plan_gather"(int, int, int, size_t) except +raise_current
    PlanPtr cpp_plan_scatter "a2a_py::plan_scatter"(int, int, int, size_t) except +raise_current
    PlanPtr cpp_transpose "a2a_py::transpose"(const PlanPtr&) except +raise_current
    size_t send_extent "a2a_py::send_extent"(const PlanPtr&)
    size_t recv_extent "a2a_py::recv_extent"(const PlanPtr&)


cdef extern from "cpp/waits.h":
    cbool wait_briefly "a2a_py::wait_briefly"(CppWork&) except +raise_current nogil
    cbool wait_slice "a2a_py::wait_slice"(CppWork&, const When&) except +raise_current nogil
    cbool let_go "a2a_py::let_go"(CppWork&) nogil
    cbool wait_released_slice "a2a_py::wait_released_slice"(CppViews&, const When&) except +raise_current nogil


cdef extern from "cpp/shared_memory.h":
    cdef cppclass SharedMemory "a2a_py::SharedMemory":
        void* get() nogil

    ctypedef shared_ptr[CppViews] ViewsPtr "a2a_py::ViewsPtr"

    SharedMemory allocate_shared "a2a_py::allocate_shared"(size_t) except +raise_current nogil
    ViewsPtr start_views "a2a_py::start_views"(
        CppCommunicator&, const void*, const DType&, const vector[int64_t]&, const When&
    ) except +raise_current nogil
    SharedMemory memory_of_view "a2a_py::memory_of_view"(const ViewsPtr&, const CppView&)


cdef extern from "cpp/checked_arithmetic.h":
    cbool multiply "a2a_py::multiply"(int64_t, int64_t, int64_t&)
    cbool add "a2a_py::add"(int64_t, int64_t, int64_t&)


cdef extern from "cpp/python/blocking.h":
    shared_ptr[CppWork] start "a2a_py::start"(CppCommunicator&, const Exchange&) except +raise_interrupted nogil
    void cpp_wait_to_read "a2a_py::wait_to_read"(
        CppCommunicator&, const void*, size_t, const KeptLayouts&
    ) except +raise_interrupted nogil


cdef extern from "cpp/python/counts.h":
    cbool append_plain_ints "a2a_py::append_plain_ints"(object, CountList&)


cdef extern from "cpp/python/object_memory.h":
    SharedMemory hold_object "a2a_py::hold_object"(object) except +raise_current


cdef extern from "a2a/endpoint.h":
    cdef cppclass EndpointOptions "a2a::Endpoint::Options":
        string address
        string secret
        string host
        CommunicatorOptions communicator

    cdef cppclass CppEndpoint "a2a::Endpoint":
        const string& handle()
        int64_t generation()
        void decline(const vector[string]&, const string&) except +raise_current nogil

    ctypedef shared_ptr[CppEndpoint] EndpointPtr "std::shared_ptr<a2a::Endpoint>"
    EndpointPtr create_endpoint "a2a::Endpoint::create"(const EndpointOptions&) except +raise_current
