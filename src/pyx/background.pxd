# Makes calls interruptible that block in C++ for long: Ctrl-C ends the wait for them.
from cpython.object cimport PyObject
from libcpp cimport bool as cbool
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from a2a cimport Bootstrap, Call, Check, CppCommunicator, Memory, When, raise_current, raise_interrupted


cdef extern from *:
    """
    #include <unistd.h>

    #include <chrono>
    #include <functional>
    #include <future>
    #include <mutex>
    #include <system_error>
    #include <thread>
    #include <utility>
    #include <vector>

    #include "core/dump.h"
    #include "transport/hosts/network.h"

    namespace a2a_py {

    using CommPtr = std::shared_ptr<a2a::Communicator>;
    using BootstrapPtr = std::shared_ptr<a2a::Bootstrap>;

    // The results of control calls; each sets those that it has.
    struct Outcome {
      CommPtr communicator;
      BootstrapPtr bootstrap;
      std::vector<std::string> strings;
    };

    // Jobs that must not run before a call in the background has ended.
    class Afterwards {
     public:
      // Runs the job at once if the call has ended, otherwise afterwards.
      void add(std::function<void()> job) {
        {
          const std::lock_guard lock(mutex_);
          if (!ended_) return jobs_.push_back(std::move(job));
        }
        job();
      }

      void end() {
        std::unique_lock lock(mutex_);
        while (!jobs_.empty()) {
          const auto jobs = std::exchange(jobs_, {});
          lock.unlock();
          for (const auto& job : jobs) job();
          lock.lock();
        }
        ended_ = true;
      }

     private:
      std::mutex mutex_;
      bool ended_ = false;
      std::vector<std::function<void()>> jobs_;  // they do not throw
    };

    // A call that runs in a thread of its own. It may be abandoned. It holds the objects that it uses until it has
    // finished, and releases them before its result is there, so that a caller that has waited for it finds none of
    // them open.
    class Background {
     public:
      explicit Background(std::function<Outcome()> call)
          : task_([call = std::move(call), afterwards = afterwards_]() mutable {
              struct End {
                Afterwards& afterwards;
                ~End() { afterwards.end(); }
              } const end{*afterwards};
              return std::exchange(call, nullptr)();
            }),
            outcome_(task_.get_future()) {}

      void start() {
        try {
          std::thread(std::move(task_)).detach();
        } catch (const std::system_error& error) {
          throw a2a::Error(a2a::Code::backend, std::string("cannot start a thread: ") + error.what());
        }
      }

      // Waits for a while. Returns true once finished. Throws in a forked child, which has no such thread.
      bool wait_slice() {
        if (::getpid() != process_) {
          throw a2a::Error(a2a::Code::aborted, "this call belongs to the process that forked this one");
        }
        return outcome_.wait_for(std::chrono::milliseconds(50)) == std::future_status::ready;
      }

      // Returns the result. Call once, after wait_slice() has returned true.
      Outcome result() { return outcome_.get(); }

      // Tells the peers, after the call, that this rank does not take part in the next operation.
      void refuse_afterwards(const CommPtr& comm, const a2a::Call& call, const std::string& reason) {
        afterwards_->add([=] {
          try {
            comm->refuse(call, reason);
          } catch (const std::exception&) {  // the communicator is broken or closed, so the peers raise anyway
          }
        });
      }

     private:
      std::shared_ptr<Afterwards> afterwards_ = std::make_shared<Afterwards>();
      std::packaged_task<Outcome()> task_;
      std::future<Outcome> outcome_;
      pid_t process_ = ::getpid();
    };

    using Task = std::shared_ptr<Background>;

    inline Task background(std::function<Outcome()> call) {
      if (!a2a::recording()) return std::make_shared<Background>(std::move(call));
      return std::make_shared<Background>([call = std::move(call), site = a2a::call_site()] {
        a2a::set_call_site(site);
        return call();
      });
    }

    inline Task split(CommPtr comm, int color, int key, When until) {
      return background([=] { return Outcome{comm->split(color, key, until), nullptr, {}}; });
    }

    inline Task group(CommPtr comm, std::vector<int> ranks, When until) {
      return background([=] { return Outcome{comm->group(ranks, until), nullptr, {}}; });
    }

    inline Task shrink(CommPtr comm, When until) {
      return background([=] { return Outcome{comm->shrink(until), nullptr, {}}; });
    }

    inline Task connect(CommPtr comm, a2a::Memory memory, int device, When until) {
      return background([=] { return comm->connect(memory, device, until), Outcome{}; });
    }

    inline Task close(CommPtr comm, When until) {
      return background([=] { return comm->close(until), Outcome{}; });
    }

    inline Task allgather_bytes(CommPtr comm, std::string mine, When until) {
      return background([=] {
        return Outcome{nullptr, nullptr, comm->allgather_bytes(mine, a2a::Op::allgather_bytes, until)};
      });
    }

    // These run in the calling thread: they check for signals themselves, and end at once. A thread left behind would
    // go on meeting, and disturb the next attempt.
    inline BootstrapPtr join_job(int rank, int size, const std::string& job, const When& until) {
      const a2a::SignalWatch signals(&interrupted);
      return a2a::unix_bootstrap(rank, size, job, *until);
    }

    inline BootstrapPtr join_tcp(int rank, int size, const std::string& job, const std::string& address,
                                 const std::string& secret, const When& until) {
      const a2a::SignalWatch signals(&interrupted);
      return a2a::tcp_bootstrap(rank, size, job, address, secret, *until);
    }

    inline std::vector<std::string> allgather_here(a2a::Bootstrap& bootstrap, const std::string& mine,
                                                   const When& until) {
      const a2a::SignalWatch signals(&interrupted);
      return bootstrap.allgather(mine, *until);
    }

    // A bootstrap whose allgather is a function of the bindings. That function returns false on failure, and keeps the
    // reason itself.
    class CallbackBootstrap final : public a2a::Bootstrap {
     public:
      using Callback = bool (*)(PyObject* context, const std::string& mine, std::vector<std::string>& all);
      using Check = bool (*)(PyObject* context);

      CallbackBootstrap(Callback callback, Check check, PyObject* context, BootstrapPtr inner)
          : callback_(callback), check_(check), context_(context), inner_(std::move(inner)) {}

      std::vector<std::string> allgather(std::string_view mine, a2a::Deadline) override {
        std::vector<std::string> all;
        if (in_python([&] { return callback_(context_, std::string(mine), all); })) return all;
        throw a2a::Error(a2a::Code::backend, "the bootstrap's allgather failed");
      }

      void while_meeting() override {
        if (in_python([&] { return check_(context_); })) return;
        throw a2a::Error(a2a::Code::aborted, "interrupted by a signal");
      }

      bool has_network() const override { return inner_ != nullptr && inner_->has_network(); }

      std::shared_ptr<a2a::hosts::Network> network(a2a::Deadline deadline) override {
        const a2a::SignalWatch signals(&interrupted);
        return inner_->network(deadline);
      }

     private:
      Callback callback_;
      Check check_;
      PyObject* context_;  // outlives the call that uses this
      BootstrapPtr inner_;  // the bootstrap that the callback uses, if it is one of the core's
    };

    // Runs in the calling thread, which MPI takes for the main one.
    inline BootstrapPtr mpi_bootstrap(bool given, int fortran_handle, const std::string& name, const When& until) {
      const a2a::SignalWatch signals(&interrupted);
      return a2a::mpi_bootstrap(given ? std::optional(fortran_handle) : std::nullopt, name, *until);
    }

    // Return the rank and the size of a bootstrap with a network.
    inline int rank_in(a2a::Bootstrap& bootstrap) { return bootstrap.network(a2a::Deadline::never())->self(); }
    inline int size_of(a2a::Bootstrap& bootstrap) { return bootstrap.network(a2a::Deadline::never())->size(); }

    // Runs in the calling thread, because communicators that one thread makes wait together.
    inline CommPtr create(int rank, int size, double timeout, a2a::Check check, const When& until,
                          CallbackBootstrap::Callback callback, CallbackBootstrap::Check signals, PyObject* context,
                          BootstrapPtr inner) {
      CallbackBootstrap bootstrap(callback, signals, context, std::move(inner));
      return a2a::Communicator::create(rank, size, bootstrap, {timeout, check}, until);
    }

    }  // namespace a2a_py
    """
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

    BootstrapPtr join_job "a2a_py::join_job"(
        int, int, const string&, const When&) except +raise_interrupted nogil
    BootstrapPtr join_tcp "a2a_py::join_tcp"(
        int, int, const string&, const string&, const string&, const When&) except +raise_interrupted nogil
    vector[string] allgather_here "a2a_py::allgather_here"(
        Bootstrap&, const string&, const When&) except +raise_interrupted nogil
    Task task_split "a2a_py::split"(CommPtr, int, int, When) except +raise_current
    Task task_group "a2a_py::group"(CommPtr, vector[int], When) except +raise_current
    Task task_shrink "a2a_py::shrink"(CommPtr, When) except +raise_current
    Task task_connect "a2a_py::connect"(CommPtr, Memory, int, When) except +raise_current
    Task task_close "a2a_py::close"(CommPtr, When) except +raise_current
    Task task_allgather_bytes "a2a_py::allgather_bytes"(CommPtr, string, When) except +raise_current

    CommPtr create_communicator "a2a_py::create"(
        int, int, double, Check, const When&, cbool (*)(PyObject*, const string&, vector[string]&) noexcept nogil,
        cbool (*)(PyObject*) noexcept nogil, PyObject*, BootstrapPtr
    ) except +raise_interrupted nogil
    BootstrapPtr cpp_mpi_bootstrap "a2a_py::mpi_bootstrap"(
        cbool, int, const string&, const When&) except +raise_interrupted nogil
    int rank_in "a2a_py::rank_in"(Bootstrap&) except +raise_current
    int size_of "a2a_py::size_of"(Bootstrap&) except +raise_current
