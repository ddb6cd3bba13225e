// The calls of MPI over one ABI. An ABI is a struct that says what its handles are and which values its constants have.
#pragma once

#include <cstring>
#include <string>

#include "transport/mpi/library.h"

namespace a2a::mpi {

// The handles of the ABIs in which they are pointers.
struct PointerHandles {
  using Comm = struct OpaqueComm*;
  using Request = struct OpaqueRequest*;
  using Message = struct OpaqueMessage*;
  using Datatype = struct OpaqueDatatype*;
  using Errhandler = struct OpaqueErrhandler*;
};

template <class Abi>
class BoundLibrary final : public Library {
 public:
  using Comm = typename Abi::Comm;
  using Request = typename Abi::Request;
  using Arrived = typename Abi::Message;
  using Datatype = typename Abi::Datatype;
  using Errhandler = typename Abi::Errhandler;

  BoundLibrary(const DynamicLibrary& library, std::optional<int> fortran_handle) : library_(library) {
    resolve();
    name_ = describe(library);
    initialise(fortran_handle.has_value());
    const Comm parent = fortran_handle ? Abi::from_fortran(library_, *fortran_handle) : Abi::world(library_);
    check(comm_dup_(parent, &comm_), "MPI_Comm_dup");
    check(comm_set_errhandler_(comm_, Abi::errors_return(library_)), "MPI_Comm_set_errhandler");
    byte_ = Abi::byte(library_);
  }

  int rank() override {
    int rank = 0;
    check(comm_rank_(comm_, &rank), "MPI_Comm_rank");
    return rank;
  }

  int size() override {
    int size = 0;
    check(comm_size_(comm_, &size), "MPI_Comm_size");
    return size;
  }

  int largest_tag() override {
    int *value = nullptr, known = 0;
    check(comm_get_attr_(comm_, Abi::kTagUb, &value, &known), "MPI_Comm_get_attr");
    constexpr int kGuaranteed = 32767;
    return known != 0 ? *value : kGuaranteed;
  }

  Handle start_send(const void* data, size_t bytes, int to, int tag) override {
    Request request{};
    check(isend_(data, static_cast<int>(bytes), byte_, to, tag, comm_, &request), "MPI_Isend");
    return pack(request);
  }

  Handle start_receive(void* data, size_t bytes, int from, int tag) override {
    Request request{};
    check(irecv_(data, static_cast<int>(bytes), byte_, from, tag, comm_, &request), "MPI_Irecv");
    return pack(request);
  }

  std::optional<Arrival> probe(int tag) override {
    int found = 0;
    Arrived message{};
    Status status;
    check(improbe_(Abi::kAnySource, tag, comm_, &found, &message, status.words), "MPI_Improbe");
    if (found == 0) return std::nullopt;
    Arrival arrival;
    arrival.message = pack(message);
    std::memcpy(&arrival.source, reinterpret_cast<const char*>(status.words) + Abi::kSourceOffset, sizeof(int));
    check(get_count_(status.words, byte_, &arrival.bytes), "MPI_Get_count");
    return arrival;
  }

  Handle start_receive(void* data, const Arrival& arrival) override {
    auto message = unpack<Arrived>(arrival.message);
    Request request{};
    check(imrecv_(data, arrival.bytes, byte_, &message, &request), "MPI_Imrecv");
    return pack(request);
  }

  bool test(Handle* request) override {
    auto handle = unpack<Request>(*request);
    int done = 0;
    Status status;
    const int result = test_(&handle, &done, status.words);
    *request = pack(handle);
    check(result, "MPI_Test");
    return done != 0;
  }

  void cancel(Handle request) override {
    auto handle = unpack<Request>(request);
    check(cancel_(&handle), "MPI_Cancel");
  }

  void finalise() override {
    int finalised = 0;
    check(finalized_(&finalised), "MPI_Finalized");
    if (finalised != 0) return;
    check(comm_free_(&comm_), "MPI_Comm_free");
    if (ours_) check(finalize_(), "MPI_Finalize");
  }

 private:
  // Larger than any ABI's, and aligned for all.
  struct Status {
    int64_t words[8];
  };

  template <class T>
  static Handle pack(T handle) {
    static_assert(sizeof(T) <= sizeof(Handle));
    Handle packed = 0;
    std::memcpy(&packed, &handle, sizeof(T));
    return packed;
  }

  template <class T>
  static T unpack(Handle packed) {
    T handle;
    std::memcpy(&handle, &packed, sizeof(T));
    return handle;
  }

  void check(int result, const char* call) const {
    if (result == 0) return;
    char text[1024] = {};
    int length = 0;
    if (error_string_(result, text, &length) != 0) length = 0;
    throw Error(Code::backend, library_.where() + ": " + call + ": " + std::string(text, static_cast<size_t>(length)));
  }

  void resolve() {
    library_.require("MPI_Init_thread", &init_thread_);
    library_.require("MPI_Initialized", &initialized_);
    library_.require("MPI_Finalized", &finalized_);
    library_.require("MPI_Finalize", &finalize_);
    library_.require("MPI_Query_thread", &query_thread_);
    library_.require("MPI_Error_string", &error_string_);
    library_.require("MPI_Comm_dup", &comm_dup_);
    library_.require("MPI_Comm_free", &comm_free_);
    library_.require("MPI_Comm_rank", &comm_rank_);
    library_.require("MPI_Comm_size", &comm_size_);
    library_.require("MPI_Comm_get_attr", &comm_get_attr_);
    library_.require("MPI_Comm_set_errhandler", &comm_set_errhandler_);
    library_.require("MPI_Isend", &isend_);
    library_.require("MPI_Irecv", &irecv_);
    library_.require("MPI_Improbe", &improbe_);
    library_.require("MPI_Imrecv", &imrecv_);
    library_.require("MPI_Get_count", &get_count_);
    library_.require("MPI_Test", &test_);
    library_.require("MPI_Cancel", &cancel_);
  }

  void initialise(bool given) {
    int initialised = 0, finalised = 0, level = 0;
    check(finalized_(&finalised), "MPI_Finalized");
    if (finalised != 0) throw Error(Code::unsupported, name_ + " was finalised in this process already");
    check(initialized_(&initialised), "MPI_Initialized");
    if (initialised != 0) {
      check(query_thread_(&level), "MPI_Query_thread");
    } else if (given) {
      throw Error(Code::unsupported, name_ + " is not initialised: it is not the library that made the communicator");
    } else {
      check(init_thread_(nullptr, nullptr, Abi::kThreadMultiple, &level), "MPI_Init_thread");
      ours_ = true;
    }
    if (level >= Abi::kThreadSerialized) return;
    throw Error(Code::unsupported, name_ + " was initialised without threads; MPI_Init_thread has to be called with " +
                                       "MPI_THREAD_MULTIPLE, or at least MPI_THREAD_SERIALIZED");
  }

  DynamicLibrary library_;
  Comm comm_{};
  Datatype byte_{};
  bool ours_ = false;

  int (*init_thread_)(int*, char***, int, int*) = nullptr;
  int (*initialized_)(int*) = nullptr;
  int (*finalized_)(int*) = nullptr;
  int (*finalize_)() = nullptr;
  int (*query_thread_)(int*) = nullptr;
  int (*error_string_)(int, char*, int*) = nullptr;
  int (*comm_dup_)(Comm, Comm*) = nullptr;
  int (*comm_free_)(Comm*) = nullptr;
  int (*comm_rank_)(Comm, int*) = nullptr;
  int (*comm_size_)(Comm, int*) = nullptr;
  int (*comm_get_attr_)(Comm, int, void*, int*) = nullptr;
  int (*comm_set_errhandler_)(Comm, Errhandler) = nullptr;
  int (*isend_)(const void*, int, Datatype, int, int, Comm, Request*) = nullptr;
  int (*irecv_)(void*, int, Datatype, int, int, Comm, Request*) = nullptr;
  int (*improbe_)(int, int, Comm, int*, Arrived*, void*) = nullptr;
  int (*imrecv_)(void*, int, Datatype, Arrived*, Request*) = nullptr;
  int (*get_count_)(const void*, Datatype, int*) = nullptr;
  int (*test_)(Request*, int*, void*) = nullptr;
  int (*cancel_)(Request*) = nullptr;
};

}  // namespace a2a::mpi
