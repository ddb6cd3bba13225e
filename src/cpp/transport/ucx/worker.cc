#include "transport/ucx/worker.h"

#include <set>
#include <utility>

namespace a2a::ucx {
namespace {

struct Buffer {
  const void* data = nullptr;
  size_t count = 0;
};

// UCX takes one run as it is, which is faster than as a list of runs.
Buffer describe(std::span<const Iov> runs, RequestParams& params) {
  params.mask |= RequestParams::kDatatype;
  params.datatype = runs.size() > 1 ? RequestParams::kIov : RequestParams::kBytes;
  if (runs.size() > 1) return {runs.data(), runs.size()};
  return runs.empty() ? Buffer{} : Buffer{runs[0].buffer, runs[0].length};
}

RequestParams params_of(Request* request) {
  RequestParams params;
  params.mask = RequestParams::kCallback | RequestParams::kUserData | RequestParams::kMemoryType;
  params.memory_type = RequestParams::kHost;  // UCX need not look
  params.user_data = request;
  return params;
}

}  // namespace

TagWorker::TagWorker(size_t processes) : api_(library()) {
  try {
    open(ContextParams::kTagMatching | ContextParams::kWakeup, processes);
    if (api_.worker_get_efd(worker_, &events_) != kOk) events_ = -1;
  } catch (const Error&) {  // perhaps no transport here can wake anybody
    open(ContextParams::kTagMatching, processes);
  }
}

void TagWorker::open(uint64_t features, size_t processes) {
  Config* config = nullptr;
  check(api_.config_read(nullptr, nullptr, &config), "ucp_config_read");
  ContextParams of_context;
  of_context.field_mask = ContextParams::kFeatures | ContextParams::kEstimatedEndpoints;
  of_context.features = features;
  of_context.estimated_num_eps = processes;
  const Status made = api_.init_version(1, 10, &of_context, config, &context_);
  api_.config_release(config);
  check(made, "ucp_init");
  try {
    WorkerParams of_worker;
    of_worker.field_mask = WorkerParams::kThreadMode;
    of_worker.thread_mode = WorkerParams::kSerialized;
    check(api_.worker_create(context_, &of_worker, &worker_), "ucp_worker_create");
    Address* address = nullptr;
    size_t length = 0;
    check(api_.worker_get_address(worker_, &address, &length), "ucp_worker_get_address");
    address_.assign(reinterpret_cast<const char*>(address), length);
    api_.worker_release_address(worker_, address);
  } catch (...) {
    close();
    throw;
  }
}

void TagWorker::close() noexcept {
  if (worker_ != nullptr) api_.worker_destroy(std::exchange(worker_, nullptr));
  api_.cleanup(context_);
}

TagWorker::~TagWorker() { close(); }

Endpoint* TagWorker::connect(const std::string& address, OnFailure on_failure, void* argument) {
  EndpointParams params;
  params.field_mask = EndpointParams::kAddress | EndpointParams::kErrorMode | EndpointParams::kErrorHandler;
  params.address = reinterpret_cast<const Address*>(address.data());
  params.error_mode = EndpointParams::kPeerErrors;
  params.error_handler = on_failure;
  params.error_argument = argument;
  Endpoint* endpoint = nullptr;
  check(api_.ep_create(worker_, &params, &endpoint), "ucp_ep_create");
  return endpoint;
}

void TagWorker::close(Endpoint* endpoint) noexcept {
  RequestParams params;
  params.mask = RequestParams::kFlags;
  params.flags = RequestParams::kForceClose;
  void* const closing = api_.ep_close_nbx(endpoint, &params);
  if (!is_request(closing)) return;
  while (api_.request_check_status(closing) == kInProgress) api_.worker_progress(worker_);
  api_.request_free(closing);
}

std::string TagWorker::devices(Endpoint* endpoint) const {
  if (api_.ep_query == nullptr) return "";
  TransportEntry entries[8];
  EndpointAttributes attributes;
  attributes.field_mask = EndpointAttributes::kTransports;
  attributes.transports = {entries, 8, sizeof(TransportEntry)};
  if (api_.ep_query(endpoint, &attributes) != kOk) return "";
  std::set<std::string> names;
  for (unsigned i = 0; i < attributes.transports.count; ++i) {
    names.insert(std::string(entries[i].transport) + "/" + entries[i].device);
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void TagWorker::progress() { api_.worker_progress(worker_); }

int TagWorker::arm() { return events_ >= 0 && api_.worker_arm(worker_) == kOk ? events_ : -1; }

// ---- requests -----------------------------------------------------------------------------------------------------

void TagWorker::send(Endpoint* to, Tag tag, std::span<const Iov> runs, const std::shared_ptr<Request>& request) {
  RequestParams params = params_of(request.get());
  params.callback.send = sent;
  const Buffer buffer = describe(runs, params);
  begin(api_.tag_send_nbx(to, buffer.data, buffer.count, tag, &params), request);
}

void TagWorker::receive(Tag tag, std::span<const Iov> runs, const std::shared_ptr<Request>& request) {
  RequestParams params = params_of(request.get());
  params.callback.receive = received;
  const Buffer buffer = describe(runs, params);
  begin(api_.tag_recv_nbx(worker_, const_cast<void*>(buffer.data), buffer.count, tag, ~Tag{0}, &params), request);
}

std::optional<Arrival> TagWorker::probe(Tag tag, Tag mask) {
  TagInfo info;
  TagMessage* const message = api_.tag_probe_nb(worker_, tag, mask, 1, &info);
  if (message == nullptr) return std::nullopt;
  return Arrival{info.sender_tag, info.length, message};
}

void TagWorker::receive(void* data, const Arrival& arrival, const std::shared_ptr<Request>& request) {
  RequestParams params = params_of(request.get());
  params.callback.receive = received;
  const Iov run{data, data == nullptr ? 0 : arrival.bytes};
  const Buffer buffer = describe({&run, 1}, params);
  begin(api_.tag_msg_recv_nbx(worker_, const_cast<void*>(buffer.data), buffer.count, arrival.message, &params),
        request);
}

void TagWorker::cancel(Request& request) noexcept {
  if (request.handle_ != nullptr) api_.request_cancel(worker_, request.handle_);
}

// A request that is complete at once calls no callback.
void TagWorker::begin(void* handle, const std::shared_ptr<Request>& request) {
  if (!is_request(handle)) return request->completed(status_of(handle));
  request->handle_ = handle;
  request->self_ = request;
}

void TagWorker::sent(void* handle, Status status, void* request) {
  library().request_free(handle);
  finish(static_cast<Request*>(request), status);
}

void TagWorker::received(void* handle, Status status, const TagInfo*, void* request) {
  library().request_free(handle);
  finish(static_cast<Request*>(request), status);
}

void TagWorker::finish(Request* request, Status status) {
  request->handle_ = nullptr;
  const auto kept = std::move(request->self_);
  request->completed(status);
}

}  // namespace a2a::ucx
