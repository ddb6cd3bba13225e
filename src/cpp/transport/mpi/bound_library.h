// Binds MPI's calls over one ABI. An ABI is a struct with the types of its handles and the values of its constants.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "transport/mpi/library.h"

namespace a2a::mpi {

// The handles of ABIs that use pointers.
struct PointerHandles {
  using Comm = struct OpaqueComm*;
  using Request = struct OpaqueRequest*;
  using Message = struct OpaqueMessage*;
  using Group = struct OpaqueGroup*;
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
  using Group = typename Abi::Group;

  BoundLibrary(const DynamicLibrary& library, std::optional<int> fortran_handle) : library_(library) {
    resolve();
    name_ = describe(library);
    initialise(fortran_handle.has_value());
    given_ = fortran_handle ? Abi::from_fortran(library_, *fortran_handle) : Abi::world(library_);
    if (fortran_handle) refuse_unless_usable(*fortran_handle);
    check(comm_rank_(given_, &rank_), "MPI_Comm_rank");
    check(comm_size_(given_, &size_), "MPI_Comm_size");
    check(comm_group_(given_, &group_), "MPI_Comm_group");
    byte_ = Abi::byte(library_);
  }

  ~BoundLibrary() override { group_free_(&group_); }

  bool same_processes(const Library& other) const override {
    const auto* same_abi = dynamic_cast<const BoundLibrary*>(&other);
    if (same_abi == nullptr || same_abi->name_ != name_) return false;
    int result = 0;
    check(group_compare_(group_, same_abi->group_, &result), "MPI_Group_compare");
    return result == Abi::kIdent;
  }

  void start_duplicate() override {
    const ErrorsReturned returned(*this, given_);
    check(comm_idup_(given_, &comm_, &duplicate_), "MPI_Comm_idup");
  }

  bool duplicated() override {
    if (duplicated_) return true;
    int done = 0;
    Status status;
    check(test_(&duplicate_, &done, status.words), "MPI_Comm_idup");
    if (done == 0) return false;
    check(comm_set_errhandler_(comm_, Abi::errors_return(library_)), "MPI_Comm_set_errhandler");
    return duplicated_ = true;
  }

  int largest_tag() override {
    int *value = nullptr, known = 0;
    check(comm_get_attr_(Abi::world(library_), Abi::kTagUb, &value, &known), "MPI_Comm_get_attr");
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

  std::optional<MatchedMessage> probe(std::optional<int> tag) override {
    int found = 0;
    Arrived message{};
    Status status;
    check(improbe_(Abi::kAnySource, tag.value_or(Abi::kAnyTag), comm_, &found, &message, status.words), "MPI_Improbe");
    if (found == 0) return std::nullopt;
    MatchedMessage arrival;
    arrival.message = pack(message);
    std::memcpy(&arrival.source, reinterpret_cast<const char*>(status.words) + Abi::kSourceOffset, sizeof(int));
    check(get_count_(status.words, byte_, &arrival.bytes), "MPI_Get_count");
    return arrival;
  }

  Handle start_receive(void* data, const MatchedMessage& arrival) override {
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

  void watch(Handle request, Watcher* watcher) override {
    requests_.push_back(unpack<Request>(request));
    watchers_.push_back(watcher);
  }

  size_t watched() const override { return requests_.size(); }

  void look() override {
    if (requests_.empty()) return;
    done_.resize(requests_.size());
    statuses_.resize(requests_.size());
    int count = 0;
    const int result =
        testsome_(static_cast<int>(requests_.size()), requests_.data(), &count, done_.data(), statuses_.data());
    complete_.clear();
    for (int i = 0; i < count; ++i) {
      const auto index = static_cast<size_t>(done_[static_cast<size_t>(i)]);
      complete_.push_back({index, watchers_[index], result != 0 ? error_of(static_cast<size_t>(i)) : 0});
    }
    // Calls watchers in the order in which they began to watch: a watcher may send a message, and later messages of its
    // tag must follow it.
    std::ranges::sort(complete_, {}, &Complete::index);
    take_out_complete();
    for (const Complete& one : complete_) {
      const auto failure = error("MPI_Testsome", one.result);
      if (one.watcher != nullptr) one.watcher->completed(failure ? &*failure : nullptr);
    }
    const auto failed = [](const Complete& one) { return one.result != 0; };
    if (std::ranges::none_of(complete_, failed)) check(result, "MPI_Testsome");
  }

  void cancel(const Watcher* watcher) override {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (watchers_[i] == watcher) check(cancel_(&requests_[i]), "MPI_Cancel");
    }
  }

  void unwatch(const Watcher* watcher) noexcept override {
    std::ranges::replace(watchers_, const_cast<Watcher*>(watcher), nullptr);
  }

  void tell_watchers_to_expect_nothing() noexcept override {
    for (Watcher* watcher : watchers_) {
      if (watcher != nullptr) watcher->expect_nothing();
    }
  }

  Handle start_barrier() override {
    Request request{};
    check(ibarrier_(comm_, &request), "MPI_Ibarrier");
    return pack(request);
  }

  // MPI_Finalize deletes the attributes of MPI_COMM_SELF before anything else.
  void call_at_finalise(void (*callback)()) override {
    int key = 0;
    check(comm_create_keyval_(&copy_nothing, &call, &key, reinterpret_cast<void*>(callback)), "MPI_Comm_create_keyval");
    check(comm_set_attr_(Abi::self(library_), key, nullptr), "MPI_Comm_set_attr");
  }

  bool finalised() override {
    int finalised = 0;
    check(finalized_(&finalised), "MPI_Finalized");
    return finalised != 0;
  }

  bool ours() override { return ours_ && !finalised(); }
  void finalise() override { check(finalize_(), "MPI_Finalize"); }
  void abort(int status) noexcept override { abort_(Abi::world(library_), status); }

 private:
  // Larger than any ABI's status, and aligned for all.
  struct Status {
    int64_t words[8];
  };

  struct Complete {
    size_t index = 0;
    Watcher* watcher = nullptr;
    int result = 0;
  };

  // Removes the complete requests. The others keep their order.
  void take_out_complete() {
    if (complete_.empty()) return;
    auto next = complete_.begin();
    size_t kept = next->index;
    for (size_t i = kept; i < requests_.size(); ++i) {
      if (next != complete_.end() && next->index == i) {
        ++next;
        continue;
      }
      requests_[kept] = requests_[i];
      watchers_[kept++] = watchers_[i];
    }
    requests_.resize(kept);
    watchers_.resize(kept);
  }

  // Returns MPI_ERROR of a status. Valid only if the result of the call says that there are errors.
  int error_of(size_t status) const {
    constexpr size_t kErrorOffset = Abi::kSourceOffset + 2 * sizeof(int);
    int error = 0;
    std::memcpy(&error, reinterpret_cast<const char*>(statuses_.data()) + status * Abi::kStatusBytes + kErrorOffset,
                sizeof(error));
    return error;
  }

  // While it lives, errors on a communicator are returned as results. By default they end the job.
  class ErrorsReturned {
   public:
    ErrorsReturned(const BoundLibrary& library, Comm comm) : library_(library), comm_(comm) {
      library_.check(library_.comm_get_errhandler_(comm_, &before_), "MPI_Comm_get_errhandler");
      library_.check(library_.comm_set_errhandler_(comm_, Abi::errors_return(library_.library_)),
                     "MPI_Comm_set_errhandler");
    }
    ~ErrorsReturned() {
      library_.comm_set_errhandler_(comm_, before_);
      library_.errhandler_free_(&before_);
    }
    ErrorsReturned(const ErrorsReturned&) = delete;
    ErrorsReturned& operator=(const ErrorsReturned&) = delete;

   private:
    const BoundLibrary& library_;
    Comm comm_;
    Errhandler before_{};
  };

  // Throws unless the handle is that of an intracommunicator. The error of an invalid handle is raised on
  // MPI_COMM_SELF, in MPI 3 on MPI_COMM_WORLD.
  void refuse_unless_usable(int fortran_handle) const {
    const ErrorsReturned of_self(*this, Abi::self(library_)), of_world(*this, Abi::world(library_));
    const std::string which = name_ + ": the Fortran handle " + std::to_string(fortran_handle);
    // Some libraries end the job when a call gets a null handle.
    const bool null = given_ == Comm{} || given_ == Abi::null(library_);
    int inter = 0;
    const int result = null ? 0 : comm_test_inter_(given_, &inter);
    if (null || result != 0) {
      throw Error(Code::invalid_argument,
                  which + " is not that of a communicator" + (null ? "" : ": " + words_of(result)));
    }
    if (inter != 0) {
      throw Error(Code::invalid_argument, which + " is that of an intercommunicator, whose ranks are two groups; " +
                                              "MPI_Intercomm_merge makes one of them");
    }
  }

  static int copy_nothing(Comm, int, void*, void*, void*, int* copied) {
    *copied = 0;
    return 0;
  }

  static int call(Comm, int, void*, void* callback) {
    reinterpret_cast<void (*)()>(callback)();
    return 0;
  }

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

  std::optional<Error> error(const char* what, int result) const {
    if (result == 0) return std::nullopt;
    return Error(Code::backend, library_.where() + ": " + what + ": " + words_of(result));
  }

  void check(int result, const char* call) const {
    if (const auto failure = error(call, result)) throw *failure;
  }

  std::string words_of(int result) const {
    char text[1024] = {};
    int length = 0;
    if (error_string_(result, text, &length) != 0) length = 0;
    return {text, static_cast<size_t>(length)};
  }

  void resolve() {
    library_.require("MPI_Init_thread", &init_thread_);
    library_.require("MPI_Initialized", &initialized_);
    library_.require("MPI_Finalized", &finalized_);
    library_.require("MPI_Finalize", &finalize_);
    library_.require("MPI_Abort", &abort_);
    library_.require("MPI_Query_thread", &query_thread_);
    library_.require("MPI_Error_string", &error_string_);
    library_.require("MPI_Comm_idup", &comm_idup_);
    library_.require("MPI_Comm_rank", &comm_rank_);
    library_.require("MPI_Comm_size", &comm_size_);
    library_.require("MPI_Comm_test_inter", &comm_test_inter_);
    library_.require("MPI_Comm_group", &comm_group_);
    library_.require("MPI_Group_compare", &group_compare_);
    library_.require("MPI_Group_free", &group_free_);
    library_.require("MPI_Comm_create_keyval", &comm_create_keyval_);
    library_.require("MPI_Comm_set_attr", &comm_set_attr_);
    library_.require("MPI_Comm_get_attr", &comm_get_attr_);
    library_.require("MPI_Comm_get_errhandler", &comm_get_errhandler_);
    library_.require("MPI_Errhandler_free", &errhandler_free_);
    library_.require("MPI_Comm_set_errhandler", &comm_set_errhandler_);
    library_.require("MPI_Isend", &isend_);
    library_.require("MPI_Irecv", &irecv_);
    library_.require("MPI_Improbe", &improbe_);
    library_.require("MPI_Imrecv", &imrecv_);
    library_.require("MPI_Get_count", &get_count_);
    library_.require("MPI_Test", &test_);
    library_.require("MPI_Testsome", &testsome_);
    library_.require("MPI_Cancel", &cancel_);
    library_.require("MPI_Ibarrier", &ibarrier_);
  }

  void initialise(bool given) {
    int initialised = 0, level = 0;
    if (finalised()) throw Error(Code::unsupported, name_ + " was finalised in this process already");
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
  Comm given_{};  // the program's: valid only until the duplicate was started
  Group group_{};
  Comm comm_{};  // the duplicate
  Request duplicate_{};
  Datatype byte_{};
  bool ours_ = false, duplicated_ = false;

  std::vector<Request> requests_;   // the watched ones
  std::vector<Watcher*> watchers_;  // of each of them; nullptr after unwatch()
  std::vector<int> done_;           // the following are scratch memory of look()
  std::vector<Status> statuses_;
  std::vector<Complete> complete_;

  int (*init_thread_)(int*, char***, int, int*) = nullptr;
  int (*initialized_)(int*) = nullptr;
  int (*finalized_)(int*) = nullptr;
  int (*finalize_)() = nullptr;
  int (*abort_)(Comm, int) = nullptr;
  int (*query_thread_)(int*) = nullptr;
  int (*error_string_)(int, char*, int*) = nullptr;
  int (*comm_idup_)(Comm, Comm*, Request*) = nullptr;
  int (*comm_rank_)(Comm, int*) = nullptr;
  int (*comm_size_)(Comm, int*) = nullptr;
  int (*comm_test_inter_)(Comm, int*) = nullptr;
  int (*comm_group_)(Comm, Group*) = nullptr;
  int (*group_compare_)(Group, Group, int*) = nullptr;
  int (*group_free_)(Group*) = nullptr;
  int (*comm_create_keyval_)(decltype(&copy_nothing), decltype(&call), int*, void*) = nullptr;
  int (*comm_set_attr_)(Comm, int, void*) = nullptr;
  int (*comm_get_attr_)(Comm, int, void*, int*) = nullptr;
  int (*comm_get_errhandler_)(Comm, Errhandler*) = nullptr;
  int (*errhandler_free_)(Errhandler*) = nullptr;
  int (*comm_set_errhandler_)(Comm, Errhandler) = nullptr;
  int (*isend_)(const void*, int, Datatype, int, int, Comm, Request*) = nullptr;
  int (*irecv_)(void*, int, Datatype, int, int, Comm, Request*) = nullptr;
  int (*improbe_)(int, int, Comm, int*, Arrived*, void*) = nullptr;
  int (*imrecv_)(void*, int, Datatype, Arrived*, Request*) = nullptr;
  int (*get_count_)(const void*, Datatype, int*) = nullptr;
  int (*test_)(Request*, int*, void*) = nullptr;
  int (*testsome_)(int, Request*, int*, int*, void*) = nullptr;
  int (*cancel_)(Request*) = nullptr;
  int (*ibarrier_)(Comm, Request*) = nullptr;
};

}  // namespace a2a::mpi
