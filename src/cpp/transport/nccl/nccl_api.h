// The calls of NCCL that the transport needs: declarations of our own, loaded while the program runs. Versions 2.18 and
// later.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/dynamic_library.h"

namespace a2a::nccl {

using Comm = struct ncclComm*;

enum class Result : int32_t { success = 0, in_progress = 7 };

// Exchanges use bytes, reductions the other types.
enum class Type : int32_t {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
  float8e4m3 = 10,  // since 2.24
  float8e5m2 = 11,  // since 2.24
};
enum class ReduceOp : int32_t { sum = 0, prod = 1, max = 2, min = 3, avg = 4 };

struct UniqueId {
  char internal[128];
};

// As of 2.32. An older library reads the fields that it knows, and resets those newer than `version`.
struct Config {
  static constexpr int kUndefined = INT_MIN;

  size_t size = sizeof(Config);
  uint32_t magic = 0xcafebeef;
  uint32_t version = 0;
  int blocking = 1;
  int cga_cluster_size = kUndefined, min_ctas = kUndefined, max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined, traffic_class = kUndefined;
  const char* comm_name = nullptr;
  int collnet_enable = kUndefined, cta_policy = kUndefined, shrink_share = kUndefined, nvls_ctas = kUndefined;
  int n_channels_per_net_peer = kUndefined, nvlink_centric_sched = kUndefined, graph_usage_mode = kUndefined;
  int num_rma_ctx = kUndefined, max_p2p_peers = kUndefined, graph_stream_ordering = kUndefined;
  int launch_order_implicit = kUndefined, num_rma_sig = kUndefined, rma_eager_init = kUndefined;
  int host_cft_mode = kUndefined, nvls_host_mode = kUndefined;
};
static_assert(sizeof(Config) == 120);

struct Api {
  DynamicLibrary library;
  int version = 0;  // 23203 is 2.32.3
  std::string version_text() const;

  Result (*get_version)(int*) = nullptr;
  const char* (*get_error_string)(Result) = nullptr;
  const char* (*get_last_error)(Comm) = nullptr;
  Result (*get_unique_id)(UniqueId*) = nullptr;
  Result (*comm_init_rank_config)(Comm*, int size, UniqueId, int rank, Config*) = nullptr;
  Result (*comm_finalize)(Comm) = nullptr;
  Result (*comm_destroy)(Comm) = nullptr;
  Result (*comm_abort)(Comm) = nullptr;
  Result (*comm_revoke)(Comm, int flags) = nullptr;  // since 2.28.7
  Result (*comm_get_async_error)(Comm, Result*) = nullptr;
  Result (*comm_count)(Comm, int*) = nullptr;
  Result (*comm_user_rank)(Comm, int*) = nullptr;
  Result (*comm_cu_device)(Comm, int*) = nullptr;
  Result (*send)(const void*, size_t, Type, int peer, Comm, void* stream) = nullptr;
  Result (*recv)(void*, size_t, Type, int peer, Comm, void* stream) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*alltoall)(const void*, void*, size_t per_peer, Type, Comm, void* stream) = nullptr;  // since 2.28.3
  Result (*allgather)(const void*, void*, size_t sent, Type, Comm, void* stream) = nullptr;
  Result (*allreduce)(const void*, void*, size_t, Type, ReduceOp, Comm, void* stream) = nullptr;
  Result (*reduce_scatter)(const void*, void*, size_t received, Type, ReduceOp, Comm, void* stream) = nullptr;
  Result (*reduce)(const void*, void*, size_t, Type, ReduceOp, int root, Comm, void* stream) = nullptr;
  Result (*broadcast)(const void*, void*, size_t, Type, int root, Comm, void* stream) = nullptr;

  // Describes an error, with NCCL's last error of the communicator, which may be nullptr: "unhandled system error (2):
  // ...".
  std::string describe(Result result, Comm comm) const;
  // Throws Error(backend) unless the result is success or in_progress.
  void check(Result result, Comm comm, const char* call) const;
};

// Loads NCCL on first use. Throws Error(unsupported) when there is none, or one that is too old.
const Api& api();

}  // namespace a2a::nccl
