#include "cpp/xla/calls.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cpp/plans.h"
#include "cpp/waits.h"
#include "cpp/xla/ffi_api.h"
#include "cpp/xla/interrupt.h"
#include "cpp/xla/starvation.h"

namespace a2a_py::xla {

namespace {

using a2a::Code;
using CommPtr = std::shared_ptr<a2a::Communicator>;

struct Kept {
  std::weak_ptr<a2a::Communicator> comm;
  Call call;
};

std::mutex keeping;
std::map<uint64_t, std::shared_ptr<const Kept>> calls;  // by their numbers
uint64_t last_call = 0;

// The communicators of a program, or of all programs.
std::set<CommPtr> communicators(std::optional<uint64_t> program) {
  const std::scoped_lock lock(keeping);
  std::set<CommPtr> found;
  for (const auto& [number, each] : calls) {
    const CommPtr comm = !program || each->call.program == *program ? each->comm.lock() : nullptr;
    if (comm != nullptr) found.insert(comm);
  }
  return found;
}

void abort_all(const std::set<CommPtr>& comms, const std::string& reason) {
  for (const CommPtr& comm : comms) {
    if (!comm->closed() && !comm->failed()) comm->abort(reason);
  }
}

std::shared_ptr<const Kept> kept(uint64_t number) {
  const std::scoped_lock lock(keeping);
  const auto found = calls.find(number);
  return found == calls.end() ? nullptr : found->second;
}

// The buffers of a call without the tokens, which order the calls of a program and have no bytes.
std::vector<const Buffer*> without_tokens(const Buffers& buffers) {
  std::vector<const Buffer*> result;
  for (int64_t i = 0; i < buffers.size; ++i) {
    if (buffers.all[i]->dtype != DataType::token) result.push_back(buffers.all[i]);
  }
  return result;
}

CountList read_counts(const Buffer& buffer) {
  const auto size = static_cast<size_t>(buffer.dims[0]);
  if (buffer.dtype == DataType::s64) {
    const auto* data = static_cast<const int64_t*>(buffer.data);
    return {data, data + size};
  }
  const auto* data = static_cast<const int32_t*>(buffer.data);
  return {data, data + size};
}

// XLA frees the buffers when the handler returns, so nothing may use them any more.
void let_go_of_buffers(a2a::Communicator& comm, a2a::Work& work) {
  using namespace std::chrono_literals;
  for (int tries = 0; !let_go(work); ++tries) {
    if (tries == 1000) comm.abort("an operation of a compiled program failed, and its memory is still in use");
    std::this_thread::sleep_for(1ms);
  }
}

constexpr const char* kStarved =
    "programs of ranks that are threads of this process wait in all threads of XLA, so those of other ranks cannot "
    "begin; "
    "set the variable NPROC to the number of ranks before JAX starts, or start ranks as processes";

void finish(a2a::Communicator& comm, const WorkPtr& work) {
  try {
    if (wait_briefly(*work)) return;
    InterruptWatch signals;
    PoolWait pool;
    while (!wait_slice(*work, {})) {
      if (pool.starves()) {
        abort_all(communicators({}), kStarved);
        throw a2a::Error(Code::unsupported, kStarved);
      }
      if (!signals.interrupted()) continue;
      comm.abort("Ctrl-C interrupted a compiled program, which cannot go on later");
      throw a2a::Error(Code::aborted, "interrupted by Ctrl-C");
    }
  } catch (...) {
    let_go_of_buffers(comm, *work);
    throw;
  }
}

void run_exchange(a2a::Communicator& comm, const Exchange& x, const void* send, void* recv) {
  const auto send_layouts = spans_of(x.send_layouts), recv_layouts = spans_of(x.recv_layouts);
  a2a::Call call = x.call;
  call.send_layouts = send_layouts, call.recv_layouts = recv_layouts;
  finish(comm, x.listed ? comm.start(*x.plan, x.sends, x.recvs, call)
                        : comm.start(*x.plan, std::span(&send, 1), std::span(&recv, 1), call));
}

// Throws Error(mismatch) where a rank will send other rows than this one expects.
void require_announced(a2a::Communicator& comm, const CountList& expected, const CountList& announced) {
  for (size_t peer = 0; peer < expected.size(); ++peer) {
    if (announced[peer] == expected[peer]) continue;
    throw a2a::Error(Code::mismatch, "rank " + std::to_string(peer) + " sends " + std::to_string(announced[peer]) +
                                         " rows to rank " + std::to_string(comm.rank()) + ", which expects " +
                                         std::to_string(expected[peer]));
  }
}

// The arguments: what is sent, the output, which is the result, and by rank the first row to send, the rows to send,
// the first row of the output, the rows to receive, the rows that the other one has said it sends.
void run_ragged(a2a::Communicator& comm, const Call& call, const std::vector<const Buffer*>& arguments, void* recv) {
  const size_t row_bytes = std::max<size_t>(call.exchange.call.unit_bytes, 1);
  Exchange x = call.exchange;
  try {
    const CountList displs = read_counts(*arguments[2]), counts = read_counts(*arguments[3]),
                    to_displs = read_counts(*arguments[4]), to_counts = read_counts(*arguments[5]);
    require_announced(comm, to_counts, read_counts(*arguments[6]));
    x.plan = compared(std::make_shared<const a2a::Plan>(a2a::Plan::alltoallv(
                          comm.rank(), comm.size(), row_bytes, {counts, displs}, call.send_bytes / row_bytes,
                          {to_counts, to_displs}, call.recv_bytes / row_bytes)),
                      call.agreement);
  } catch (const std::exception& error) {
    comm.refuse(x.call, error.what());
    throw;
  }
  run_exchange(comm, x, arguments[0]->data, recv);
}

bool has_elements(const std::vector<const Buffer*>& buffers, size_t elems) {
  if (buffers.empty()) return elems == 0;
  size_t found = 1;
  for (int64_t i = 0; i < buffers[0]->rank; ++i) found *= static_cast<size_t>(buffers[0]->dims[i]);
  return found == elems;
}

void run(a2a::Communicator& comm, const Call& call, const CallFrame& frame) {
  const auto arguments = without_tokens(frame.arguments), results = without_tokens(frame.results);
  // A program that another process has compiled, and this one has loaded, may mean another call by the number.
  const bool sends = call.kind != Call::Kind::recv, receives = call.kind != Call::Kind::send;
  if ((sends && !has_elements(arguments, call.send_elems)) || (receives && !has_elements(results, call.recv_elems))) {
    throw a2a::Error(Code::unsupported, "this process has not compiled the program, or not for these shapes");
  }
  const void* send = arguments.empty() ? nullptr : arguments[0]->data;
  void* recv = results.empty() ? nullptr : results[0]->data;
  switch (call.kind) {
    case Call::Kind::exchange:
      if (!call.exchange.listed && call.exchange.plan->recv_extents()[0] == 0 && call.recv_bytes > 0) {
        std::memset(recv, 0, call.recv_bytes);
      }
      return run_exchange(comm, call.exchange, send, recv);
    case Call::Kind::in_place:
      return run_exchange(comm, call.exchange, recv, recv);
    case Call::Kind::ragged:
      return run_ragged(comm, call, arguments, recv);
    case Call::Kind::send:
      return finish(comm, comm.send(send, call.send_bytes, call.peer, call.tag, call.exchange.call));
    case Call::Kind::recv:
      return finish(comm, comm.recv(recv, call.recv_bytes, call.peer, call.tag, call.exchange.call));
  }
}

ErrorCode code_of(Code code) {
  switch (code) {
    case Code::invalid_argument:
      return ErrorCode::invalid_argument;
    case Code::mismatch:
      return ErrorCode::failed_precondition;
    case Code::peer_lost:
      return ErrorCode::unavailable;
    case Code::timeout:
      return ErrorCode::deadline_exceeded;
    case Code::aborted:
      return ErrorCode::aborted;
    case Code::unsupported:
      return ErrorCode::unimplemented;
    case Code::backend:
      return ErrorCode::internal;
  }
  return ErrorCode::internal;
}

const char* class_of(Code code) {
  switch (code) {
    case Code::invalid_argument:
      return "InvalidArgumentError";
    case Code::mismatch:
      return "MismatchError";
    case Code::peer_lost:
      return "PeerLostError";
    case Code::timeout:
      return "TimeoutError";
    case Code::aborted:
      return "AbortedError";
    case Code::unsupported:
      return "UnsupportedError";
    case Code::backend:
      return "BackendError";
  }
  return "Error";
}

Error* failure(const CallFrame& frame, ErrorCode code, const std::string& text) {
  ErrorArguments arguments{sizeof(ErrorArguments), nullptr, text.c_str(), code};
  return frame.api->create_error(&arguments);
}

uint64_t number_of(const Attributes& attributes) {
  for (int64_t i = 0; i < attributes.size; ++i) {
    const Name& name = *attributes.names[i];
    if (attributes.types[i] != Attributes::kScalar || std::string_view(name.data, name.size) != "call") continue;
    return *static_cast<const uint64_t*>(static_cast<const Scalar*>(attributes.values[i])->value);
  }
  return 0;
}

// Answers XLA, which asks for the version of the interface before it calls the handler.
bool told_version(CallFrame& frame) {
  if (frame.extensions == nullptr || frame.extensions->type != Extension::kMetadata) return false;
  ApiVersion& version = reinterpret_cast<MetadataExtension*>(frame.extensions)->metadata->version;
  version.major = 0;
  version.minor = frame.api == nullptr ? 1 : frame.api->version.minor;  // what is used has stayed as it is since 0.0
  return true;
}

// XLA ends the program, so that this rank starts none of the operations that follow in it. Where all ranks have failed
// in this operation they stay in step. Otherwise another rank may have come through it, and would wait for the next, or
// meet one of another program there. So would the ranks of another communicator of the program.
void end(const Call& call, Code code, const std::string& reason) {
  const bool everywhere = call.compared_by_all && (code == Code::mismatch || code == Code::invalid_argument);
  const auto comms = communicators(call.program);
  if (!everywhere || comms.size() > 1) abort_all(comms, "a compiled program failed: " + reason);
}

Error* handle(CallFrame* frame) {
  if (told_version(*frame) || frame->stage != CallFrame::kExecute) return nullptr;
  const auto found = kept(number_of(frame->attributes));
  const CommPtr comm = found == nullptr ? nullptr : found->comm.lock();
  if (comm == nullptr) {
    return failure(*frame, ErrorCode::aborted,
                   "a2a.AbortedError: this program was compiled for a communicator that is gone");
  }
  try {
    run(*comm, found->call, *frame);
    return nullptr;
  } catch (const a2a::Error& error) {
    end(found->call, error.code(), error.what());
    return failure(*frame, code_of(error.code()), std::string("a2a.") + class_of(error.code()) + ": " + error.what());
  } catch (const std::exception& error) {
    end(found->call, Code::backend, error.what());
    return failure(*frame, ErrorCode::internal, error.what());
  }
}

}  // namespace

uint64_t keep_call(const std::shared_ptr<a2a::Communicator>& comm, const Call& call) {
  const std::scoped_lock lock(keeping);
  std::erase_if(calls, [](const auto& each) { return each.second->comm.expired(); });
  calls[++last_call] = std::make_shared<const Kept>(Kept{comm, call});
  return last_call;
}

void abort_programs(const std::string& reason, const std::vector<uint64_t>& programs) {
  for (const uint64_t program : programs) abort_all(communicators(program), reason);
}

void* handler() { return reinterpret_cast<void*>(&handle); }

}  // namespace a2a_py::xla
