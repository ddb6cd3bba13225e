# The declarations of the C++ core for the bindings, and C++ code that Cython cannot express.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from layouts cimport KeptLayouts


cdef extern from *:
    """
    #include <cstring>
    #include <new>

    #include "a2a/types.h"

    namespace a2a_py {

    // The Python class of each a2a::Code, in each module that throws them.
    static PyObject* error_class[8];

    // Sets the classes: a tuple in the order of a2a::Code, which starts at 1. Call once, when the module is imported.
    static void set_error_classes(PyObject* classes) {
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(classes); ++i) {
        error_class[i + 1] = Py_NewRef(PyTuple_GET_ITEM(classes, i));
      }
    }

    // Sets the Python error for a C++ exception; all go through it. Requires the GIL, while an exception is being
    // handled. A message may hold text of a peer or of an argument: bytes that are not UTF-8 are escaped.
    static void set_error(a2a::Code code, const char* text) {
      PyObject* message = PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)), "backslashreplace");
      if (message == nullptr) return;
      PyErr_SetObject(error_class[static_cast<int>(code)], message);
      Py_DECREF(message);
    }

    static void raise_current() {
      try {
        throw;
      } catch (const a2a::Error& error) {
        set_error(error.code(), error.what());
      } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
      } catch (const std::exception& error) {
        set_error(a2a::Code::backend, error.what());
      }
    }

    }  // namespace a2a_py
    """
    void raise_current "a2a_py::raise_current"()
    void set_error_classes "a2a_py::set_error_classes"(tuple)


cdef extern from "a2a/types.h" nogil:
    cdef cppclass DType "a2a::DType":
        uint8_t code
        uint8_t bits
        uint16_t lanes

    enum class Memory "a2a::Memory":
        host
        cuda
        npu

    enum class Op "a2a::Op":
        alltoallv
        alltoall
        alltoall_list
        allgather
        global_scatter
        global_gather
        exchange
        barrier
        split
        group
        shrink
        close
        connect
        allgather_views
        allgather_bytes
        exchange_counts
        allreduce
        reduce_scatter
        reduce
        broadcast
        gather
        scatter
        allgatherv
        send
        recv
        route
        dispatch
        combine
        give_back

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
    const char* op_string "a2a::to_string"(Op)

    cdef cppclass CppStream "a2a::Stream":
        void* handle


cdef extern from "a2a/work.h" nogil:
    cdef cppclass CppWork "a2a::Work":
        cbool done() except +raise_current
        cbool arrived(int) except +raise_current
        void order_before(CppStream) except +raise_current
        int source()


cdef extern from "a2a/libraries.h" nogil:
    string library_for "a2a::library_for"(Memory) except +raise_current
    string mpi_library "a2a::mpi_library"() except +raise_current
    void add_library_directory "a2a::add_library_directory"(const string&) except +raise_current


cdef extern from "a2a/communicator.h" nogil:
    cbool recording "a2a::recording"()
    void set_call_site "a2a::set_call_site"(const string&) except +raise_current


cdef extern from "a2a/bootstrap.h" nogil:
    cdef cppclass Bootstrap "a2a::Bootstrap":
        pass

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
        cbool string_copies
        cbool puts

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

    cdef cppclass CppCommunicator "a2a::Communicator":
        int rank() except +raise_current
        int size() except +raise_current
        double timeout_seconds() except +raise_current
        void set_timeout_seconds(double seconds)
        uint64_t next_plan() except +raise_current
        uint64_t last_number() except +raise_current
        void refuse(const Call&, string) except +raise_current
        shared_ptr[CppWork] send(const void*, size_t, int, int64_t, const Call&) except +raise_current
        shared_ptr[CppWork] recv(void*, size_t, int, int64_t, const Call&) except +raise_current
        void refuse_message(cbool, int, int64_t, string) except +raise_current
        void adopt(Memory, void*) except +raise_current
        void abort(string)
        cbool closed() except +raise_current
        cbool broken() except +raise_current
        HostFacts host_facts() except +raise_current
        vector[WayOfBytes] host_ways(size_t bytes) except +raise_current


cdef extern from *:
    """
    #include <cxxabi.h>
    #include <unistd.h>

    #include <algorithm>
    #include <array>
    #include <atomic>
    #include <chrono>
    #include <memory>
    #include <optional>
    #include <string>
    #include <thread>
    #include <vector>

    #include "a2a/communicator.h"

    #ifndef A2A_VERSION
    #define A2A_VERSION "0"
    #endif

    namespace a2a_py {

    using PlanPtr = std::shared_ptr<const a2a::Plan>;
    using WorkPtr = std::shared_ptr<a2a::Work>;
    using CountList = std::vector<int64_t>;
    using When = std::optional<a2a::Deadline>;

    inline When deadline_after(double seconds) { return a2a::Deadline::after_seconds(seconds); }
    inline bool has_passed(const When& until) { return until && until->passed(); }

    // The arguments of Communicator::start. `listed` says which of the two forms of buffers is used.
    struct Exchange {
      PlanPtr plan;
      KeptLayouts send_layouts, recv_layouts;
      int split_axis = 0, concat_axis = 0;  // the axes along which the two sides are divided
      std::vector<int64_t> send_shape, recv_shape;  // of tensors that are divided along an axis
      a2a::Call call;
      bool listed = false;
      const void* send = nullptr;
      void* recv = nullptr;
      std::vector<const void*> sends;
      std::vector<void*> recvs;
    };

    // The exception that a signal handler raised in this thread while C++ code waited. Needs the GIL.
    static thread_local PyObject* pending_interrupt = nullptr;

    // The threads that are in in_python(), and the one that is about to delete the interpreter.
    inline std::atomic<int> threads_in_python{0};
    inline std::atomic<std::thread::id> ending_thread{};

    // Calls code that takes the GIL while C++ code waits. At exit CPython before 3.14 ends a thread that asks for the
    // GIL by unwinding its stack, and the process ends when C++ code catches that, as Cython's and the core's does.
    // Instead the thread stays here until the process has ended, as it does from 3.14 on. A thread that asks for the
    // GIL of an interpreter that was deleted would crash, so it stays here, too.
    template <class Call>
    auto in_python(Call call) {
      struct Inside {
        Inside() { ++threads_in_python; }
        ~Inside() { --threads_in_python; }
      };
      try {
        const Inside inside;
        const std::thread::id ending = ending_thread;
        if (ending == std::thread::id() || ending == std::this_thread::get_id()) return call();
      } catch (const abi::__forced_unwind&) {
        for (;;) ::pause();  // the end of this handler would end the process
      }
      for (;;) ::pause();
    }

    // Call while the interpreter ends: from here on no thread asks for its GIL. Waits for those that already ask, which
    // CPython ends, but not longer than 200 ms: from 3.14 on they stay where they are.
    inline void end_python() {
      using namespace std::chrono_literals;
      ending_thread = std::this_thread::get_id();
      const auto until = std::chrono::steady_clock::now() + 200ms;
      while (threads_in_python != 0 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
    }

    // Runs Python's signal handlers. Returns whether one of them wants the call to end.
    inline bool look_for_signals_here() {
      const PyGILState_STATE state = PyGILState_Ensure();
      const bool raised = PyErr_CheckSignals() != 0;
      if (raised) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyErr_NormalizeException(&type, &value, &trace);
        Py_XDECREF(type);
        Py_XDECREF(trace);
        Py_XDECREF(pending_interrupt);
        pending_interrupt = value;
      }
      PyGILState_Release(state);
      return raised;
    }
    inline bool interrupted() { return in_python(look_for_signals_here); }

    // Raises that exception, if there is one, and returns -1; otherwise returns 0.
    inline int raise_pending() {
      if (pending_interrupt == nullptr) return 0;
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(pending_interrupt)), pending_interrupt);
      Py_CLEAR(pending_interrupt);
      return -1;
    }

    // For C++ code that a signal ended: raises the exception of the handler.
    inline void raise_interrupted() {
      try {
        throw;
      } catch (const a2a::Interrupted&) {
        if (raise_pending() == 0) raise_current();
      } catch (...) {
        raise_current();
      }
    }

    // Appends the entries of a list or tuple if all are plain ints of 64 bits, and returns whether they are. Without
    // the GIL another thread may change the list meanwhile, so there other code does it, which holds a reference to
    // each entry.
    inline bool append_plain_ints(PyObject* items, CountList& counts) {
    #ifndef Py_GIL_DISABLED
      const Py_ssize_t size = PySequence_Fast_GET_SIZE(items);
      PyObject* const* const entries = PySequence_Fast_ITEMS(items);
      counts.resize(static_cast<size_t>(size));
      for (Py_ssize_t i = 0; i < size; ++i) {
        int overflow = 0;
        if (!PyLong_CheckExact(entries[i])) return false;
        counts[static_cast<size_t>(i)] = PyLong_AsLongLongAndOverflow(entries[i], &overflow);
        if (overflow != 0) return false;
      }
      return true;
    #else
      return false;
    #endif
    }

    inline WorkPtr start(a2a::Communicator& comm, const Exchange& x) {
      const a2a::SignalWatch signals(&interrupted);
      std::vector<a2a::TensorLayout> send_layouts, recv_layouts;
      try {
        send_layouts = spans_of(x.send_layouts), recv_layouts = spans_of(x.recv_layouts);
      } catch (const std::exception& error) {  // no memory
        comm.refuse(x.call, error.what());
        throw;
      }
      a2a::Call call = x.call;
      call.send_layouts = send_layouts, call.recv_layouts = recv_layouts;
      if (x.listed) return comm.start(*x.plan, x.sends, x.recvs, call);
      return comm.start(*x.plan, std::span(&x.send, 1), std::span(&x.recv, 1), call);
    }

    // Starts a message of one tensor. `kept` has its layout if it has gaps.
    inline WorkPtr start_message(a2a::Communicator& comm, bool sends, void* data, size_t bytes, int peer, int64_t tag,
                                 const a2a::Call& of, const KeptLayouts& kept) {
      const auto layouts = spans_of(kept);
      a2a::Call call = of;
      (sends ? call.send_layouts : call.recv_layouts) = layouts;
      return sends ? comm.send(data, bytes, peer, tag, call) : comm.recv(data, bytes, peer, tag, call);
    }

    inline void wait_to_read(a2a::Communicator& comm, const void* data, size_t bytes, const KeptLayouts& kept) {
      const a2a::SignalWatch signals(&interrupted);
      comm.wait_to_read(data, bytes, spans_of(kept));
    }

    // Whether an exchange moves so few bytes that its copies take no longer than releasing the GIL for them.
    inline bool is_short(const Exchange& x) {
      constexpr size_t kShort = size_t{16} << 10;
      return !x.listed && x.call.memory == a2a::Memory::host &&
             x.plan->send_extents()[0] + x.plan->recv_extents()[0] <= kShort;
    }

    inline bool wait_briefly(a2a::Work& work) { return work.wait_briefly(); }

    // Starts the exchange if it does not have to wait for a lock; otherwise returns nullptr. Requires the GIL.
    inline WorkPtr try_start(a2a::Communicator& comm, const Exchange& x) {
      const bool packed = x.send_layouts.empty() && x.recv_layouts.empty();
      if (!packed || !is_short(x)) return nullptr;
      return comm.try_start(*x.plan, std::span(&x.send, 1), std::span(&x.recv, 1), x.call);
    }

    // Waits for a while, so that the caller can check for signals between two waits. Returns true once finished. Throws
    // Error(timeout) when `until` has passed.
    inline bool wait_slice(a2a::Work& work, const When& until) {
      const auto now = a2a::Deadline::Clock::now();
      if (until && until->passed(now)) {
        work.wait(*until);
        return true;
      }
      auto end = now + std::chrono::milliseconds(50);
      if (until) end = std::min(end, until->when());
      return work.wait_until(a2a::Deadline::at(end));
    }

    // Whether the caller may reuse the memory of the buffers. False, the safe answer, when the work cannot tell.
    inline bool let_go(a2a::Work& work) noexcept {
      try {
        return work.let_go();
      } catch (...) {
        return false;
      }
    }

    // The counts and displacements of one call, empty at first, and the plan made from them. Programs often repeat the
    // same ones, so each thread keeps the memory of the last ones, and the last plan. A call inside such a call gets
    // memory of its own.
    class CallCounts {
     public:
      CallCounts() : thread_(this_thread()) { lists_.swap(thread_.spare); }
      ~CallCounts() {
        for (CountList& list : lists_) list.clear();
        lists_.swap(thread_.spare);
      }
      CallCounts(const CallCounts&) = delete;
      CallCounts& operator=(const CallCounts&) = delete;

      CountList& to() { return lists_[0]; }
      CountList& to_displs() { return lists_[1]; }
      CountList& from() { return lists_[2]; }
      CountList& from_displs() { return lists_[3]; }

      PlanPtr plan(int rank, int size, size_t row_bytes, size_t send_rows, size_t recv_rows) {
        const Numbers numbers{static_cast<size_t>(rank), static_cast<size_t>(size), row_bytes, send_rows, recv_rows};
        if (thread_.plan != nullptr && thread_.numbers == numbers && thread_.lists == lists_) return thread_.plan;
        auto plan = std::make_shared<const a2a::Plan>(a2a::Plan::alltoallv(
            rank, size, row_bytes, {to(), to_displs()}, send_rows, {from(), from_displs()}, recv_rows));
        thread_.plan.reset();
        thread_.numbers = numbers;
        thread_.lists = lists_;
        return thread_.plan = plan;
      }

     private:
      using Lists = std::array<CountList, 4>;
      using Numbers = std::array<size_t, 5>;

      struct Thread {
        Lists spare;
        PlanPtr plan;     // made from the following
        Numbers numbers{};
        Lists lists;
      };

      static Thread& this_thread() {
        thread_local Thread thread;
        return thread;
      }

      Thread& thread_;
      Lists lists_;
    };

    inline PlanPtr plan_alltoall_list(int rank, int size, const std::vector<size_t>& send_bytes,
                                      const std::vector<size_t>& recv_bytes) {
      return std::make_shared<const a2a::Plan>(a2a::Plan::alltoall_list(rank, size, send_bytes, recv_bytes));
    }

    inline PlanPtr plan_allgather(int rank, int size, size_t bytes_per_rank) {
      return std::make_shared<const a2a::Plan>(a2a::Plan::allgather(rank, size, bytes_per_rank));
    }

    inline PlanPtr plan_global(bool gather, int rank, int size, size_t row_bytes, const CountList& local,
                               const CountList& global) {
      auto make = gather ? a2a::Plan::global_gather : a2a::Plan::global_scatter;
      return std::make_shared<const a2a::Plan>(make(rank, size, row_bytes, local, global));
    }

    inline PlanPtr plan_allreduce(a2a::Communicator& comm, size_t elem_bytes, size_t elems, a2a::Memory memory) {
      return std::make_shared<const a2a::Plan>(comm.plan_allreduce(elem_bytes, elems, memory));
    }
    inline PlanPtr plan_reduce_scatter(int rank, int size, size_t elem_bytes, const CountList& counts) {
      return std::make_shared<const a2a::Plan>(a2a::Plan::reduce_scatter(rank, size, elem_bytes, counts));
    }
    inline PlanPtr plan_reduce(int rank, int size, int root, size_t bytes) {
      return std::make_shared<const a2a::Plan>(a2a::Plan::reduce(rank, size, root, bytes));
    }
    inline PlanPtr plan_broadcast(int rank, int size, int root, size_t bytes) {
      return std::make_shared<const a2a::Plan>(a2a::Plan::broadcast(rank, size, root, bytes));
    }
    inline PlanPtr plan_gather(int rank, int size, int root, size_t bytes_per_rank) {
      return std::make_shared<const a2a::Plan>(a2a::Plan::gather(rank, size, root, bytes_per_rank));
    }
    inline PlanPtr plan_scatter(int rank, int size, int root, size_t bytes_per_rank) {
      return std::make_shared<const a2a::Plan>(a2a::Plan::scatter(rank, size, root, bytes_per_rank));
    }

    inline PlanPtr transpose(const PlanPtr& plan) { return std::make_shared<const a2a::Plan>(plan->transpose()); }
    inline size_t send_extent(const PlanPtr& plan) { return plan->send_extents()[0]; }
    inline size_t recv_extent(const PlanPtr& plan) { return plan->recv_extents()[0]; }

    inline bool multiply(int64_t a, int64_t b, int64_t& product) { return !__builtin_mul_overflow(a, b, &product); }
    inline bool add(int64_t a, int64_t b, int64_t& sum) { return !__builtin_add_overflow(a, b, &sum); }

    // Reference-counted memory, which any thread may release, without the GIL and after the interpreter has ended.
    using SharedMemory = std::shared_ptr<void>;

    inline SharedMemory allocate_shared(size_t bytes) { return a2a::Communicator::allocate_shared(bytes); }

    using ViewsPtr = std::shared_ptr<a2a::Views>;

    inline ViewsPtr start_views(a2a::Communicator& comm, const void* data, const a2a::DType& dtype,
                                const std::vector<int64_t>& shape, const When& until) {
      return comm.start_views(data, dtype, shape, until);
    }

    // Returns the memory of a view. It keeps the views alive: they are released after the last tensor over one of them
    // is gone.
    inline SharedMemory memory_of_view(const ViewsPtr& views, const a2a::View& view) {
      return SharedMemory(views, const_cast<std::byte*>(view.data));
    }

    // Waits for a while, as wait_slice().
    inline bool wait_released_slice(a2a::Views& views, const When& until) {
      auto end = a2a::Deadline::Clock::now() + std::chrono::milliseconds(50);
      if (until) end = std::min(end, until->when());
      return views.wait_released(a2a::Deadline::at(end));
    }

    inline SharedMemory hold_object(PyObject* owner) {
      Py_INCREF(owner);
      return SharedMemory(owner, [](void* object) {
        if (!Py_IsInitialized()) return;
        in_python([object] {
          const PyGILState_STATE state = PyGILState_Ensure();
          Py_DECREF(static_cast<PyObject*>(object));
          PyGILState_Release(state);
          return true;
        });
      });
    }

    }  // namespace a2a_py
    """
    const char* A2A_VERSION

    ctypedef vector[int64_t] CountList "a2a_py::CountList"

    cdef cppclass When "a2a_py::When":
        pass

    cdef cppclass PlanPtr "a2a_py::PlanPtr":
        cbool operator bool()

    cdef cppclass SharedMemory "a2a_py::SharedMemory":
        void* get() nogil

    cdef cppclass Exchange "a2a_py::Exchange":
        PlanPtr plan
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

    ctypedef shared_ptr[CppViews] ViewsPtr "a2a_py::ViewsPtr"

    When deadline_after "a2a_py::deadline_after"(double) nogil
    cbool has_passed "a2a_py::has_passed"(const When&)
    void end_python "a2a_py::end_python"()
    void raise_interrupted "a2a_py::raise_interrupted"()
    int raise_pending "a2a_py::raise_pending"() except -1
    shared_ptr[CppWork] start "a2a_py::start"(CppCommunicator&, const Exchange&) except +raise_interrupted nogil
    shared_ptr[CppWork] cpp_start_message "a2a_py::start_message"(
        CppCommunicator&, cbool, void*, size_t, int, int64_t, const Call&, const KeptLayouts&
    ) except +raise_interrupted nogil
    void cpp_wait_to_read "a2a_py::wait_to_read"(
        CppCommunicator&, const void*, size_t, const KeptLayouts&
    ) except +raise_interrupted nogil
    cbool append_plain_ints "a2a_py::append_plain_ints"(object, CountList&)
    shared_ptr[CppWork] try_start "a2a_py::try_start"(CppCommunicator&, const Exchange&) except +raise_current
    cbool wait_briefly "a2a_py::wait_briefly"(CppWork&) except +raise_current nogil
    cbool wait_slice "a2a_py::wait_slice"(CppWork&, const When&) except +raise_current nogil
    cbool let_go "a2a_py::let_go"(CppWork&) nogil

    cdef cppclass CallCounts "a2a_py::CallCounts":
        CountList& to()
        CountList& to_displs()
        CountList& from_ "from"()
        CountList& from_displs()
        PlanPtr plan(int, int, size_t, size_t, size_t) except +raise_current

    PlanPtr cpp_plan_alltoall_list "a2a_py::plan_alltoall_list"(
        int, int, const vector[size_t]&, const vector[size_t]&) except +raise_current
    PlanPtr cpp_plan_allgather "a2a_py::plan_allgather"(int, int, size_t) except +raise_current
    PlanPtr cpp_plan_global "a2a_py::plan_global"(
        cbool, int, int, size_t, const CountList&, const CountList&) except +raise_current
    PlanPtr cpp_plan_allreduce "a2a_py::plan_allreduce"(CppCommunicator&, size_t, size_t, Memory) except +raise_current
    PlanPtr cpp_plan_reduce_scatter "a2a_py::plan_reduce_scatter"(
        int, int, size_t, const CountList&) except +raise_current
    PlanPtr cpp_plan_reduce "a2a_py::plan_reduce"(int, int, int, size_t) except +raise_current
    PlanPtr cpp_plan_broadcast "a2a_py::plan_broadcast"(int, int, int, size_t) except +raise_current
    PlanPtr cpp_plan_gather "a2a_py::plan_gather"(int, int, int, size_t) except +raise_current
    PlanPtr cpp_plan_scatter "a2a_py::plan_scatter"(int, int, int, size_t) except +raise_current
    PlanPtr cpp_transpose "a2a_py::transpose"(const PlanPtr&) except +raise_current
    size_t send_extent "a2a_py::send_extent"(const PlanPtr&)
    size_t recv_extent "a2a_py::recv_extent"(const PlanPtr&)

    cbool multiply "a2a_py::multiply"(int64_t, int64_t, int64_t&)
    cbool add "a2a_py::add"(int64_t, int64_t, int64_t&)

    ViewsPtr start_views "a2a_py::start_views"(
        CppCommunicator&, const void*, const DType&, const vector[int64_t]&, const When&
    ) except +raise_current nogil
    SharedMemory memory_of_view "a2a_py::memory_of_view"(const ViewsPtr&, const CppView&)
    cbool wait_released_slice "a2a_py::wait_released_slice"(CppViews&, const When&) except +raise_current nogil

    SharedMemory allocate_shared "a2a_py::allocate_shared"(size_t) except +raise_current nogil
    SharedMemory hold_object "a2a_py::hold_object"(object) except +raise_current
