// The CUDA driver: streams, events, and graphs captured from streams.
#include <utility>

#include "nvidia/cuda_state.h"

namespace fake {
namespace {

struct Capture {
  CUstreamCaptureMode mode;
  std::thread::id thread;
  std::weak_ptr<Graph> graph;
};
std::mutex& mutex() {
  static auto* const it = new std::mutex;
  return *it;
}
std::vector<Capture>& captures() {
  static auto* const it = new std::vector<Capture>;
  return *it;
}

Handles<Graph>& graphs() {
  static auto* const it = new Handles<Graph>(0x96a0'0000'0000);
  return *it;
}
Handles<Graph>& executables() {
  static auto* const it = new Handles<Graph>(0x96e0'0000'0000);
  return *it;
}

// What driver 580.159 says of one that was destroyed, where that does not end the process.
CUresult no_stream() { return cuda_refuse(CUDA_ERROR_INVALID_CONTEXT, "no such stream; was it destroyed?"); }
CUresult no_event() { return cuda_refuse(CUDA_ERROR_INVALID_HANDLE, "no such event; was it destroyed?"); }

CUresult spoil(Graph& graph, CUresult code, const std::string& text) {
  const std::lock_guard lock(graph.mutex);
  graph.invalid = true;
  return cuda_refuse(code, text);
}

// The latest record of an event: nothing if there is none, and it counts as reached.
CUresult look_at(CUevent handle, std::shared_ptr<Moment>& moment) {
  const auto event = events().find(handle);
  if (!event) return no_event();
  const std::lock_guard lock(event->mutex);
  if (event->graph.lock()) return cuda_refuse(CUDA_ERROR_CAPTURED_EVENT, "the event was recorded in a capture");
  moment = event->latest;
  return CUDA_SUCCESS;
}

}  // namespace

std::shared_ptr<Stream> cuda_stream(CUstream handle) { return driver_stream(handle, current_device()); }

// What a thread lets itself be forbidden while captures are in progress.
static thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult cuda_unsafe_in_capture() {
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  const std::lock_guard lock(mutex());
  for (const Capture& capture : captures()) {
    const bool mine = capture.thread == std::this_thread::get_id();
    const auto graph = capture.graph.lock();
    if (!graph || capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    const bool local =
        capture.mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL || thread_mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    if (!mine && local) continue;
    return spoil(*graph, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a call that a capture in progress forbids");
  }
  return CUDA_SUCCESS;
}

}  // namespace fake

using namespace fake;

CUresult cuStreamCreate(CUstream* phStream, unsigned int Flags) {
  return cuStreamCreateWithPriority(phStream, Flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int) {
  A2A_FAKE_READY();
  A2A_FAKE_VALUE(phStream && (flags & ~CU_STREAM_NON_BLOCKING) == 0);
  *phStream = static_cast<CUstream>(streams().add(std::make_shared<Stream>(current_device())));
  log("cuStreamCreate", -1, *phStream);
  return CUDA_SUCCESS;
}

// Returns at once; the work that is left is done.
CUresult cuStreamDestroy_v2(CUstream hStream) {
  log("cuStreamDestroy", -1, hStream);
  A2A_FAKE_READY();
  const auto stream = streams().remove(hStream);
  if (!stream) return no_stream();
  stream->close();
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream hStream) {
  log("cuStreamSynchronize", -1, hStream);
  A2A_FAKE_READY();
  const auto stream = cuda_stream(hStream);
  if (!stream) return no_stream();
  if (const auto graph = stream->capture()) {
    return spoil(*graph, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a stream is synchronised while it is captured");
  }
  return cuda_result(stream->synchronize(std::nullopt));
}

CUresult cuStreamQuery(CUstream hStream) {
  A2A_FAKE_READY();
  const auto stream = cuda_stream(hStream);
  if (!stream) return no_stream();
  if (const auto graph = stream->capture()) {
    return spoil(*graph, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a stream is queried while it is captured");
  }
  return cuda_result(stream->synchronize(Clock::now()));
}

// The special streams are of the current context.
CUresult cuStreamGetCtx(CUstream hStream, CUcontext* pctx) {
  A2A_FAKE_READY();
  A2A_FAKE_VALUE(pctx);
  const auto stream = cuda_stream(hStream);
  if (!stream) return no_stream();
  *pctx = cuda_context(stream->device);
  return CUDA_SUCCESS;
}

// An event that was never recorded holds nobody back.
CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int) {
  log("cuStreamWaitEvent", -1, hStream);
  A2A_FAKE_READY();
  const auto stream = cuda_stream(hStream);
  const auto event = events().find(hEvent);
  if (!stream) return no_stream();
  if (!event) return no_event();
  const auto capture = stream->capture();
  if (capture) {
    const std::lock_guard lock(event->mutex);
    if (event->latest) {
      return spoil(*capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "a captured stream waits for what is not captured");
    }
  }
  stream->wait(*event);
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* phEvent, unsigned int Flags) {
  A2A_FAKE_READY();
  A2A_FAKE_VALUE(phEvent);
  A2A_FAKE_VALUE(!(Flags & CU_EVENT_INTERPROCESS) || (Flags & CU_EVENT_DISABLE_TIMING));
  *phEvent = static_cast<CUevent>(events().add(std::make_shared<Event>()));
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream) {
  log("cuEventRecord", -1, hStream);
  A2A_FAKE_READY();
  const auto stream = cuda_stream(hStream);
  const auto event = events().find(hEvent);
  if (!stream) return no_stream();
  if (!event) return no_event();
  stream->record(*event);
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent hEvent) {
  A2A_FAKE_READY();
  A2A_FAKE_SAFE();
  std::shared_ptr<Moment> moment;
  if (const CUresult wrong = look_at(hEvent, moment)) return wrong;
  if (!moment) return CUDA_SUCCESS;
  const auto reached = moment->reached();
  return reached ? cuda_result(*reached) : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent hEvent) {
  log("cuEventSynchronize");
  A2A_FAKE_READY();
  A2A_FAKE_SAFE();
  std::shared_ptr<Moment> moment;
  if (const CUresult wrong = look_at(hEvent, moment)) return wrong;
  return moment ? cuda_result(moment->wait([] { return false; })) : CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent hEvent) {
  A2A_FAKE_READY();
  return events().remove(hEvent) ? CUDA_SUCCESS : no_event();
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* captureStatus) {
  A2A_FAKE_READY();
  A2A_FAKE_VALUE(captureStatus);
  const auto stream = cuda_stream(hStream);
  if (!stream) return no_stream();
  const auto graph = stream->capture();
  *captureStatus = CU_STREAM_CAPTURE_STATUS_NONE;
  if (!graph) return CUDA_SUCCESS;
  const std::lock_guard lock(graph->mutex);
  *captureStatus = graph->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  A2A_FAKE_VALUE(mode);
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) {
  log("cuStreamBeginCapture", -1, hStream);
  A2A_FAKE_READY();
  const auto stream = cuda_stream(hStream);
  if (!stream) return no_stream();
  if (reinterpret_cast<uintptr_t>(hStream) < 2) {
    return cuda_refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the legacy stream cannot be captured");
  }
  const auto graph = std::make_shared<Graph>();
  if (!stream->begin_capture(graph)) return cuda_refuse(CUDA_ERROR_INVALID_VALUE, "the stream is captured already");
  const std::lock_guard lock(mutex());
  captures().push_back({mode, std::this_thread::get_id(), graph});
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) {
  log("cuStreamEndCapture", -1, hStream);
  A2A_FAKE_READY();
  A2A_FAKE_VALUE(phGraph);
  const auto stream = cuda_stream(hStream);
  if (!stream) return no_stream();
  const auto graph = stream->capture();
  if (!graph) return cuda_refuse(CUDA_ERROR_INVALID_VALUE, "the stream is not captured");
  *phGraph = nullptr;
  std::unique_lock lock(graph->mutex);
  if (graph->streams.front().lock() != stream) {
    graph->invalid = true;
    return cuda_refuse(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture did not begin with this stream");
  }
  graph->unjoined.erase(stream.get());
  const auto members = graph->streams;
  const bool invalid = graph->invalid, unjoined = !graph->unjoined.empty();
  lock.unlock();
  for (const auto& member : members) {
    if (const auto alive = member.lock()) alive->end_capture();
  }
  {
    const std::lock_guard all(mutex());
    std::erase_if(captures(), [&](const Capture& capture) { return capture.graph.lock() == graph; });
  }
  if (invalid) return cuda_refuse(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "something spoiled the capture");
  if (unjoined) return cuda_refuse(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "a stream was not joined by an event");
  // Events that were recorded know the graph as long as it is captured: what programs get is another one.
  auto finished = std::make_shared<Graph>();
  finished->work = graph->work;
  *phGraph = static_cast<CUgraph>(graphs().add(finished));
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph, unsigned long long) {
  A2A_FAKE_READY();
  A2A_FAKE_VALUE(phGraphExec);
  const auto graph = graphs().find(hGraph);
  A2A_FAKE_VALUE(graph);
  auto copy = std::make_shared<Graph>();
  copy->work = graph->work;
  *phGraphExec = static_cast<CUgraphExec>(executables().add(copy));
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
  log("cuGraphLaunch", -1, hStream);
  A2A_FAKE_READY();
  const auto stream = cuda_stream(hStream);
  const auto graph = executables().find(hGraphExec);
  if (!stream) return no_stream();
  A2A_FAKE_VALUE(graph);
  for (const Maker& make : graph->work) stream->push(make);
  return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec hGraphExec) {
  A2A_FAKE_READY();
  A2A_FAKE_VALUE(executables().remove(hGraphExec));
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph hGraph) {
  A2A_FAKE_READY();
  A2A_FAKE_VALUE(graphs().remove(hGraph));
  return CUDA_SUCCESS;
}
