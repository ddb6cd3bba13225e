// The part of UCX's C interface that a2a calls, written from its documentation: nothing of UCX is needed to build.
// tests/python/network/test_ucx_abi.py compares it with UCX's own header.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

namespace a2a::ucx {

using Status = int8_t;  // ucs_status_t, which is packed into one byte
using Tag = uint64_t;   // ucp_tag_t

constexpr Status kOk = 0, kInProgress = 1, kCanceled = -16;

struct Context;       // *ucp_context_h
struct Worker;        // *ucp_worker_h
struct Endpoint;      // *ucp_ep_h
struct Address;       // ucp_address_t
struct Config;        // ucp_config_t
struct TagMessage;    // *ucp_tag_message_h
using Memory = void;  // *ucp_mem_h

// ucp_params_t. The later members are not read: field_mask does not name them.
struct ContextParams {
  uint64_t field_mask = 0, features = 0;
  size_t request_size = 0;
  void (*request_init)(void*) = nullptr;
  void (*request_cleanup)(void*) = nullptr;
  uint64_t tag_sender_mask = 0;
  int mt_workers_shared = 0;
  size_t estimated_num_eps = 0, estimated_num_ppn = 0;
  const char* name = nullptr;
  size_t node_local_id = 0;

  static constexpr uint64_t kFeatures = 1 << 0, kEstimatedEndpoints = 1 << 6;
  static constexpr uint64_t kTagMatching = 1 << 0, kWakeup = 1 << 4;
};

// ucp_worker_params_t
struct WorkerParams {
  uint64_t field_mask = 0;
  int thread_mode = 0;
  uint64_t cpu_mask[16] = {};
  unsigned events = 0;
  void* user_data = nullptr;
  int event_fd = 0;
  uint64_t flags = 0;
  const char* name = nullptr;
  size_t am_alignment = 0;
  uint64_t client_id = 0;

  static constexpr uint64_t kThreadMode = 1 << 0;
  static constexpr int kSerialized = 1;
};

// ucs_sock_addr_t
struct SocketAddress {
  const sockaddr* address = nullptr;
  socklen_t length = 0;
};

// ucp_ep_params_t
struct EndpointParams {
  uint64_t field_mask = 0;
  const Address* address = nullptr;
  int error_mode = 0;
  void (*error_handler)(void* argument, Endpoint* endpoint, Status status) = nullptr;
  void* error_argument = nullptr;
  void* user_data = nullptr;
  unsigned flags = 0;
  SocketAddress socket_address;
  void* connection_request = nullptr;
  const char* name = nullptr;
  SocketAddress local_address;

  static constexpr uint64_t kAddress = 1 << 0, kErrorMode = 1 << 1, kErrorHandler = 1 << 2;
  static constexpr int kPeerErrors = 1;
};

// ucp_tag_recv_info_t
struct TagInfo {
  Tag sender_tag = 0;
  size_t length = 0;
};

// ucp_dt_iov_t
struct Iov {
  void* buffer = nullptr;
  size_t length = 0;
};

// ucp_request_param_t
struct RequestParams {
  uint32_t mask = 0, flags = 0;
  void* request = nullptr;
  union {
    void (*send)(void* request, Status status, void* user_data);
    void (*receive)(void* request, Status status, const TagInfo* info, void* user_data);
  } callback = {};
  uint64_t datatype = 0;
  void* user_data = nullptr;
  void* reply_buffer = nullptr;
  int memory_type = 0;
  TagInfo* info = nullptr;
  Memory* memory = nullptr;
  uint64_t remote_datatype = 0;
  const void* remote = nullptr;
  size_t remote_count = 0;

  static constexpr uint32_t kCallback = 1 << 1, kUserData = 1 << 2, kDatatype = 1 << 3, kFlags = 1 << 4,
                            kMemoryType = 1 << 6;
  static constexpr uint64_t kBytes = 1 << 3;  // ucp_dt_make_contig(1)
  static constexpr uint64_t kIov = 2;
  static constexpr uint32_t kForceClose = 1;  // in flags of ucp_ep_close_nbx
  static constexpr int kHost = 0;             // of memory_type
};

// ucp_transport_entry_t, ucp_transports_t and ucp_ep_attr_t
struct TransportEntry {
  const char* transport = nullptr;
  const char* device = nullptr;
};

struct EndpointAttributes {
  uint64_t field_mask = 0;
  char name[32] = {};
  sockaddr_storage local = {}, remote = {};
  struct {
    TransportEntry* entries = nullptr;
    unsigned count = 0;
    size_t entry_size = 0;
  } transports;
  void* user_data = nullptr;

  static constexpr uint64_t kTransports = 1 << 3;
};

// Whether a returned pointer is a request in flight. Otherwise it is a status: null for success.
inline bool is_request(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) - 1 < uintptr_t(-100) - 1; }
inline Status status_of(const void* pointer) { return static_cast<Status>(reinterpret_cast<intptr_t>(pointer)); }

// The functions, by their names without "ucp_".
struct Api {
  void (*get_version)(unsigned*, unsigned*, unsigned*) = nullptr;
  const char* (*get_version_string)() = nullptr;
  Status (*config_read)(const char*, const char*, Config**) = nullptr;
  void (*config_release)(Config*) = nullptr;
  Status (*init_version)(unsigned, unsigned, const ContextParams*, const Config*, Context**) = nullptr;
  void (*cleanup)(Context*) = nullptr;
  Status (*worker_create)(Context*, const WorkerParams*, Worker**) = nullptr;
  void (*worker_destroy)(Worker*) = nullptr;
  Status (*worker_get_address)(Worker*, Address**, size_t*) = nullptr;
  void (*worker_release_address)(Worker*, Address*) = nullptr;
  unsigned (*worker_progress)(Worker*) = nullptr;
  Status (*worker_get_efd)(Worker*, int*) = nullptr;
  Status (*worker_arm)(Worker*) = nullptr;
  Status (*ep_create)(Worker*, const EndpointParams*, Endpoint**) = nullptr;
  void* (*ep_close_nbx)(Endpoint*, const RequestParams*) = nullptr;
  Status (*ep_query)(Endpoint*, EndpointAttributes*) = nullptr;  // nullptr before UCX 1.12
  void* (*tag_send_nbx)(Endpoint*, const void*, size_t, Tag, const RequestParams*) = nullptr;
  void* (*tag_recv_nbx)(Worker*, void*, size_t, Tag, Tag, const RequestParams*) = nullptr;
  TagMessage* (*tag_probe_nb)(Worker*, Tag, Tag, int, TagInfo*) = nullptr;
  void* (*tag_msg_recv_nbx)(Worker*, void*, size_t, TagMessage*, const RequestParams*) = nullptr;
  void (*request_cancel)(Worker*, void*) = nullptr;
  void (*request_free)(void*) = nullptr;
  Status (*request_check_status)(void*) = nullptr;
  const char* (*status_string)(Status) = nullptr;  // of libucs
};

}  // namespace a2a::ucx
