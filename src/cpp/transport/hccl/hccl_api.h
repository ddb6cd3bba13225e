// The calls of HCCL and AscendCL that the transport needs: declarations of our own, loaded while the program runs. The
// libraries: libhccl.so (collectives), in newer versions libhcomm.so (communicators), libascendcl.so (streams, memory).
#pragma once

#include <cstdint>
#include <string>

#include "runtime/dynamic_library.h"

namespace a2a::hccl {

using Comm = void*;
using AclStream = void*;
using AclEvent = void*;
using AclContext = void*;

struct RootInfo {
  char internal[4108];
};

enum class Result : int32_t { success = 0, timeout = 9 };

// Exchanges use integers, reductions also the other types.
enum class Type : int32_t { int8 = 0, int16 = 1, int32 = 2, float16 = 3, float32 = 4, int64 = 5, bfloat16 = 11 };
enum class ReduceOp : int32_t { sum = 0, prod = 1, max = 2, min = 3 };

enum class Direction : int32_t { send = 0, recv = 1 };

struct Item {
  Direction direction;
  void* buffer;
  uint64_t count;
  Type type;
  uint32_t peer;
};
static_assert(sizeof(Item) == 32);

struct PointerAttributes {
  uint32_t id;  // of the device
  enum class Where : int32_t { host = 0, device = 1, unregistered = 2 } where;
  uint32_t page_size;
  uint32_t reserved[4];
};
static_assert(sizeof(PointerAttributes) == 28);

// The symbols. A symbol that the library lacks is nullptr; its user then calls missing().
struct Api {
  DynamicLibrary hccl, acl;

  Result (*get_root_info)(RootInfo*) = nullptr;
  Result (*comm_init_root_info)(uint32_t size, const RootInfo*, uint32_t rank, Comm*) = nullptr;
  Result (*comm_init_cluster_info)(const char* rank_table, uint32_t rank, Comm*) = nullptr;
  Result (*comm_destroy)(Comm) = nullptr;
  Result (*get_rank_size)(Comm, uint32_t*) = nullptr;
  Result (*get_rank_id)(Comm, uint32_t*) = nullptr;
  Result (*get_comm_async_error)(Comm, Result*) = nullptr;
  Result (*alltoallv)(const void* send, const void* send_counts, const void* sdispls, Type, const void* recv,
                      const void* recv_counts, const void* rdispls, Type, Comm, AclStream) = nullptr;
  Result (*alltoall)(const void* send, uint64_t count, Type, const void* recv, uint64_t, Type, Comm,
                     AclStream) = nullptr;
  Result (*allgather)(void* send, void* recv, uint64_t count, Type, Comm, AclStream) = nullptr;
  Result (*batch_send_recv)(Item*, uint32_t items, Comm, AclStream) = nullptr;
  Result (*allreduce)(void* send, void* recv, uint64_t count, Type, ReduceOp, Comm, AclStream) = nullptr;
  Result (*reduce_scatter)(void* send, void* recv, uint64_t received, Type, ReduceOp, Comm, AclStream) = nullptr;
  Result (*reduce)(void* send, void* recv, uint64_t count, Type, ReduceOp, uint32_t root, Comm, AclStream) = nullptr;
  Result (*broadcast)(void*, uint64_t count, Type, uint32_t root, Comm, AclStream) = nullptr;
  Result (*scatter)(void* send, void* recv, uint64_t received, Type, uint32_t root, Comm, AclStream) = nullptr;

  int (*init)(const char* config) = nullptr;
  int (*set_device)(int32_t) = nullptr;
  int (*get_current_context)(AclContext*) = nullptr;
  int (*set_current_context)(AclContext) = nullptr;
  int (*get_device_count)(uint32_t*) = nullptr;
  int (*malloc)(void**, size_t, int policy) = nullptr;
  int (*free)(void*) = nullptr;
  int (*create_stream)(AclStream*) = nullptr;
  int (*destroy_stream)(AclStream) = nullptr;
  int (*destroy_stream_force)(AclStream) = nullptr;
  int (*synchronize_stream_with_timeout)(AclStream, int32_t milliseconds) = nullptr;
  int (*stream_query)(AclStream, int32_t* status) = nullptr;
  int (*stream_abort)(AclStream) = nullptr;
  int (*create_event_with_flag)(AclEvent*, uint32_t flag) = nullptr;
  int (*destroy_event)(AclEvent) = nullptr;
  int (*record_event)(AclEvent, AclStream) = nullptr;
  int (*query_event_status)(AclEvent, int32_t* status) = nullptr;
  int (*stream_wait_event)(AclStream, AclEvent) = nullptr;
  int (*pointer_get_attributes)(const void*, PointerAttributes*) = nullptr;
  const char* (*recent_error)() = nullptr;

  // Throws Error(backend), or Error(timeout), with the library's text.
  void check(Result result, const char* call) const;
  void check_acl(int error, const char* call) const;
  // Describes an error with the library's text: "error 2 (HCCL_E_PTR)".
  std::string describe(Result result) const;
  std::string describe_acl(int error) const;
};

// Loads the libraries on first use. Throws Error(unsupported) when a library or a symbol is missing.
const Api& api();

}  // namespace a2a::hccl
