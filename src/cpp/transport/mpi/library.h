// MPI, loaded while the program runs: the few calls that a2a needs, whichever of the three ABIs the library has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/dynamic_library.h"

namespace a2a::mpi {

// A handle of MPI, an integer or a pointer.
using Handle = uint64_t;

// The most bytes that go in one call: counts are of type int.
constexpr size_t kMostBytes = size_t{1} << 30;

// A message that was matched and waits to be received.
struct Arrival {
  int source = 0;
  int bytes = 0;
  Handle message = 0;
};

// Is told when a request is complete, and what went wrong, if anything did.
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void completed(const Error* error) = 0;
  // The network ends: what it still waits to receive will not come.
  virtual void expect_nothing() noexcept {}
};

// One communicator of the program, and its duplicate. Calls come one at a time. All throw Error(backend) with MPI's own
// words when they fail.
class Library {
 public:
  virtual ~Library() = default;  // not after MPI was finalised

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Whether both have the same processes, in the same order.
  virtual bool same_processes(const Library& other) const = 0;

  // Begins to duplicate the communicator, which may be freed afterwards. Collective, and done when duplicated() says
  // so: everything about requests and messages needs that.
  virtual void start_duplicate() = 0;
  virtual bool duplicated() = 0;

  virtual int largest_tag() = 0;

  virtual Handle start_send(const void* data, size_t bytes, int to, int tag) = 0;
  virtual Handle start_receive(void* data, size_t bytes, int from, int tag) = 0;
  // The next message from anybody, with that tag or with any.
  virtual std::optional<Arrival> probe(std::optional<int> tag) = 0;
  virtual Handle start_receive(void* data, const Arrival& arrival) = 0;
  // Whether the request is complete, which ends it.
  virtual bool test(Handle* request) = 0;

  // Requests that are asked after together: one call of MPI's finds out about all of them.
  virtual void watch(Handle request, Watcher* watcher) = 0;
  virtual size_t watched() const = 0;
  // Lends MPI a hand once, and tells the watchers what is complete. An error of a request is its watcher's.
  virtual void look() = 0;
  // Cancels the watcher's requests. It is told of them when they are complete all the same.
  virtual void cancel(const Watcher* watcher) = 0;
  // The watcher's requests go on, and nobody is told.
  virtual void unwatch(const Watcher* watcher) noexcept = 0;
  virtual void tell_watchers_to_expect_nothing() noexcept = 0;

  // Is complete when all processes have called it.
  virtual Handle start_barrier() = 0;

  // Has this called at the beginning of MPI_Finalize, whoever calls that. MPI can be used in it.
  virtual void call_at_finalise(void (*callback)()) = 0;
  // Whether MPI_Finalize is over.
  virtual bool finalised() = 0;
  // Whether it was initialised here, and nobody has finalised it.
  virtual bool ours() = 0;
  // Waits for all other processes.
  virtual void finalise() = 0;
  // Ends all processes of the job, which ends with that status.
  virtual void abort(int status) noexcept = 0;

  // See describe().
  const std::string& name() const { return name_; }

 protected:
  std::string name_;
  int rank_ = 0, size_ = 0;
};

// "MPI (libmpi.so.12): MPICH Version: 5.0.2"
std::string describe(const DynamicLibrary& library);

// Finds and initialises the library, if nobody did, for the communicator with this Fortran handle, otherwise
// MPI_COMM_WORLD. Throws Error(unsupported) when there is no usable MPI, Error(invalid_argument) when the handle is not
// that of an intracommunicator.
std::unique_ptr<Library> open_library(std::optional<int> fortran_handle);

// One for each ABI.
std::unique_ptr<Library> bind_standard_abi(const DynamicLibrary& library, std::optional<int> fortran_handle);
std::unique_ptr<Library> bind_mpich_abi(const DynamicLibrary& library, std::optional<int> fortran_handle);
std::unique_ptr<Library> bind_open_mpi_abi(const DynamicLibrary& library, std::optional<int> fortran_handle);

}  // namespace a2a::mpi
