// MPI, loaded while the program runs: the few calls that a2a needs, over any of three ABIs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/dynamic_library.h"

namespace a2a::mpi {

// A handle of MPI: an integer or a pointer.
using Handle = uint64_t;

// The most bytes of one call: counts are of type int.
constexpr size_t kMostBytes = size_t{1} << 30;

// A message that was matched and has to be received.
struct MatchedMessage {
  int source = 0;
  int bytes = 0;
  Handle message = 0;
};

// Called when a request is complete, with its error if it failed.
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void completed(const Error* error) = 0;
  // Called when the network ends: messages that it has not received will not come.
  virtual void expect_nothing() noexcept {}
};

// One communicator of the program, and its duplicate. Only one thread at a time may call. All functions throw
// Error(backend), with MPI's text, when they fail.
class Library {
 public:
  virtual ~Library() = default;  // must not run after MPI was finalised

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Whether both communicators have the same processes, in the same order.
  virtual bool same_processes(const Library& other) const = 0;

  // Begins to duplicate the communicator, which may be freed afterwards. Collective. Complete when duplicated() returns
  // true; all functions on requests and messages require that.
  virtual void start_duplicate() = 0;
  virtual bool duplicated() = 0;

  virtual int largest_tag() = 0;

  virtual Handle start_send(const void* data, size_t bytes, int to, int tag) = 0;
  virtual Handle start_receive(void* data, size_t bytes, int from, int tag) = 0;
  // Returns the next message from any process, with that tag or with any.
  virtual std::optional<MatchedMessage> probe(std::optional<int> tag) = 0;
  virtual Handle start_receive(void* data, const MatchedMessage& arrival) = 0;
  // Whether the request is complete. Then it is freed.
  virtual bool test(Handle* request) = 0;

  // Adds a request to those that look() tests, all in one call.
  virtual void watch(Handle request, Watcher* watcher) = 0;
  virtual size_t watched() const = 0;
  // Makes progress once, and tells the watchers of complete requests. An error of a request goes to its watcher.
  virtual void look() = 0;
  // Cancels the watcher's requests. The watcher is still called when they are complete.
  virtual void cancel(const Watcher* watcher) = 0;
  // The watcher is no longer called. Its requests continue.
  virtual void unwatch(const Watcher* watcher) noexcept = 0;
  virtual void tell_watchers_to_expect_nothing() noexcept = 0;

  // Complete when all processes have called it.
  virtual Handle start_barrier() = 0;

  // Registers a function that is called at the beginning of MPI_Finalize, whoever calls that. It may use MPI.
  virtual void call_at_finalise(void (*callback)()) = 0;
  // Whether MPI_Finalize has ended.
  virtual bool finalised() = 0;
  // Whether a2a has initialised MPI, and nobody has finalised it.
  virtual bool ours() = 0;
  // Calls MPI_Finalize, which waits for all other processes.
  virtual void finalise() = 0;
  // Ends all processes of the job. The job ends with that status.
  virtual void abort(int status) noexcept = 0;

  // Returns the text of describe().
  const std::string& name() const { return name_; }

 protected:
  std::string name_;
  int rank_ = 0, size_ = 0;
};

// Names the library and its version: "MPI (libmpi.so.12): MPICH Version: 5.0.2"
std::string describe(const DynamicLibrary& library);

// Finds the library, initialises it if nobody did, and uses the communicator with this Fortran handle, otherwise
// MPI_COMM_WORLD. Throws Error(unsupported) when there is no usable MPI, Error(invalid_argument) when the handle is not
// that of an intracommunicator.
std::unique_ptr<Library> open_library(std::optional<int> fortran_handle);

// Each returns the library of one ABI.
std::unique_ptr<Library> bind_standard_abi(const DynamicLibrary& library, std::optional<int> fortran_handle);
std::unique_ptr<Library> bind_mpich_abi(const DynamicLibrary& library, std::optional<int> fortran_handle);
std::unique_ptr<Library> bind_open_mpi_abi(const DynamicLibrary& library, std::optional<int> fortran_handle);

}  // namespace a2a::mpi
