// Memory, streams and graphs of an NVIDIA GPU for tests, through the driver that A2A_CUDA_LIBRARY names: in general the
// double of tests/fakes.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "check.h"

namespace nvidia {

using Pointer = unsigned long long;

class Cuda {
 public:
  static const Cuda& get() {
    static const Cuda one;
    return one;
  }

  int (*init)(unsigned);
  int (*device_get)(int*, int);
  int (*primary_ctx_retain)(void**, int);
  int (*ctx_set_current)(void*);
  int (*ctx_push_current)(void*);
  int (*ctx_pop_current)(void**);
  int (*mem_alloc)(Pointer*, size_t);
  int (*mem_free)(Pointer);
  int (*memcpy_to_device)(Pointer, const void*, size_t);
  int (*memcpy_to_host)(void*, Pointer, size_t);
  int (*stream_create)(void**, unsigned);
  int (*stream_destroy)(void*);
  int (*stream_synchronize)(void*);
  int (*begin_capture)(void*, int);
  int (*end_capture)(void*, void**);
  int (*graph_instantiate)(void**, void*, unsigned long long);
  int (*graph_launch)(void*, void*);
  int (*graph_exec_destroy)(void*);
  int (*graph_destroy)(void*);

 private:
  Cuda() {
    const char* const path = std::getenv("A2A_CUDA_LIBRARY");
    library_ = dlopen(path != nullptr ? path : "libcuda.so.1", RTLD_NOW);
    if (library_ == nullptr) {
      std::cerr << "no CUDA driver: " << dlerror() << '\n';
      std::exit(1);
    }
    find("cuInit", &init), find("cuDeviceGet", &device_get), find("cuDevicePrimaryCtxRetain", &primary_ctx_retain);
    find("cuCtxPushCurrent_v2", &ctx_push_current), find("cuCtxPopCurrent_v2", &ctx_pop_current);
    find("cuCtxSetCurrent", &ctx_set_current), find("cuMemAlloc_v2", &mem_alloc), find("cuMemFree_v2", &mem_free);
    find("cuMemcpyHtoD_v2", &memcpy_to_device), find("cuMemcpyDtoH_v2", &memcpy_to_host);
    find("cuStreamDestroy_v2", &stream_destroy);
    find("cuStreamCreate", &stream_create), find("cuStreamSynchronize", &stream_synchronize);
    find("cuStreamBeginCapture_v2", &begin_capture), find("cuStreamEndCapture", &end_capture);
    find("cuGraphInstantiateWithFlags", &graph_instantiate), find("cuGraphLaunch", &graph_launch);
    find("cuGraphExecDestroy", &graph_exec_destroy), find("cuGraphDestroy", &graph_destroy);
    CHECK_EQ(init(0), 0);
  }

  template <class Function>
  void find(const char* name, Function** function) {
    *function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (*function == nullptr) check::fail(std::string("the CUDA driver lacks ") + name);
  }

  void* library_;
};

// Makes the calling thread use this device from now on, with one stream.
inline thread_local void* stream = nullptr;
inline void use_device(int index) {
  const Cuda& cuda = Cuda::get();
  int device = 0;
  void* context = nullptr;
  CHECK_EQ(cuda.device_get(&device, index), 0);
  CHECK_EQ(cuda.primary_ctx_retain(&context, device), 0);
  CHECK_EQ(cuda.ctx_set_current(context), 0);
  constexpr unsigned kNonBlocking = 1;
  if (stream == nullptr) CHECK_EQ(cuda.stream_create(&stream, kNonBlocking), 0);
}

// A stream of another device than the thread's.
class OtherDevice {
 public:
  explicit OtherDevice(int index) {
    const Cuda& cuda = Cuda::get();
    int device = 0;
    void *context = nullptr, *popped = nullptr;
    CHECK_EQ(cuda.device_get(&device, index), 0);
    CHECK_EQ(cuda.primary_ctx_retain(&context, device), 0);
    CHECK_EQ(cuda.ctx_push_current(context), 0);
    CHECK_EQ(cuda.stream_create(&stream, 1), 0);
    CHECK_EQ(cuda.ctx_pop_current(&popped), 0);
  }
  void* stream = nullptr;
};

// NCCL as a program uses it, with communicators that block.
class Nccl {
 public:
  static const Nccl& get() {
    static const Nccl one;
    return one;
  }

  struct Id {
    char bytes[128];
  };
  int (*get_unique_id)(Id*);
  int (*comm_init_rank)(void**, int, Id, int);
  int (*comm_count)(void*, int*);
  int (*comm_destroy)(void*);
  int (*comm_abort)(void*);

  template <class Communicator>
  void* join(Communicator& comm) const {
    Id id{};
    if (comm.rank() == 0) CHECK_EQ(get_unique_id(&id), 0);
    const std::string roots = comm.allgather_bytes({id.bytes, sizeof id.bytes}, a2a::Op::allgather)[0];
    roots.copy(id.bytes, sizeof id.bytes);
    void* made = nullptr;
    CHECK_EQ(comm_init_rank(&made, comm.size(), id, comm.rank()), 0);
    return made;
  }

 private:
  Nccl() {
    const char* const path = std::getenv("A2A_NCCL_LIBRARY");
    void* const library = dlopen(path != nullptr ? path : "libnccl.so.2", RTLD_NOW);
    const auto find = [&](const char* name, auto** function) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    };
    find("ncclGetUniqueId", &get_unique_id), find("ncclCommInitRank", &comm_init_rank);
    find("ncclCommCount", &comm_count), find("ncclCommDestroy", &comm_destroy), find("ncclCommAbort", &comm_abort);
  }
};

// Memory on the thread's device.
class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) { CHECK_EQ(Cuda::get().mem_alloc(&data_, bytes == 0 ? 1 : bytes), 0); }
  ~Memory() { CHECK_EQ(Cuda::get().mem_free(data_), 0); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* get() const { return reinterpret_cast<void*>(data_); }
  std::byte* bytes() const { return static_cast<std::byte*>(get()); }
  void upload(const std::vector<std::byte>& from) {
    if (!from.empty()) CHECK_EQ(Cuda::get().memcpy_to_device(data_, from.data(), from.size()), 0);
  }
  // Returns the bytes after all work on the thread's stream.
  std::vector<std::byte> download() const {
    std::vector<std::byte> to(bytes_);
    CHECK_EQ(Cuda::get().stream_synchronize(stream), 0);
    if (!to.empty()) CHECK_EQ(Cuda::get().memcpy_to_host(to.data(), data_, to.size()), 0);
    return to;
  }

 private:
  Pointer data_ = 0;
  size_t bytes_;
};

// The work that the body enqueues on the thread's stream, as a graph that can be launched many times.
class Graph {
 public:
  explicit Graph(const std::function<void()>& body) {
    constexpr int kGlobal = 0;
    CHECK_EQ(Cuda::get().begin_capture(stream, kGlobal), 0);
    body();
    CHECK_EQ(Cuda::get().end_capture(stream, &graph_), 0);
    CHECK_EQ(Cuda::get().graph_instantiate(&executable_, graph_, 0), 0);
  }
  ~Graph() {
    Cuda::get().graph_exec_destroy(executable_);
    Cuda::get().graph_destroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch() const { CHECK_EQ(Cuda::get().graph_launch(executable_, stream), 0); }

 private:
  void* graph_ = nullptr;
  void* executable_ = nullptr;
};

}  // namespace nvidia
