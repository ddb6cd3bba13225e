// AscendCL: streams and events.
#include "ascend/acl_state.h"

namespace fake {

std::shared_ptr<Stream> acl_stream(aclrtStream handle) {
  return handle ? streams().find(handle) : default_stream(current_device());
}

namespace {

aclError no_stream() { return acl_refuse(ACL_ERROR_RT_INVALID_HANDLE, "no such stream; was it destroyed?"); }
aclError no_event() { return acl_refuse(ACL_ERROR_RT_INVALID_HANDLE, "no such event; was it destroyed?"); }

aclError create_event(aclrtEvent* event) {
  A2A_FAKE_READY();
  A2A_FAKE_NOT_NULL(event);
  *event = events().add(std::make_shared<Event>());
  return ACL_SUCCESS;
}

std::shared_ptr<Moment> latest(Event& event) {
  const std::lock_guard lock(event.mutex);
  return event.latest;
}

}  // namespace
}  // namespace fake

using namespace fake;

aclError aclrtCreateStream(aclrtStream* stream) { return aclrtCreateStreamWithConfig(stream, 0, 0); }

aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) {
  A2A_FAKE_READY();
  A2A_FAKE_NOT_NULL(stream);
  *stream = streams().add(std::make_shared<Stream>(current_device()));
  log("aclrtCreateStream", -1, *stream);
  return ACL_SUCCESS;
}

// "Before calling [it] you need to call aclrtSynchronizeStream to ensure that the tasks have been completed."
aclError aclrtDestroyStream(aclrtStream stream) {
  log("aclrtDestroyStream", -1, stream);
  A2A_FAKE_READY();
  const auto found = streams().find(stream);
  if (!found) return no_stream();
  if (found->synchronize(Clock::now()).kind == Failure::not_ready) {
    return acl_refuse(ACL_ERROR_RT_STREAM_NOT_COMPLETE, "a stream is destroyed before it was synchronised");
  }
  streams().remove(stream);
  found->close();
  return ACL_SUCCESS;
}

aclError aclrtDestroyStreamForce(aclrtStream stream) {
  log("aclrtDestroyStreamForce", -1, stream);
  A2A_FAKE_READY();
  const auto found = streams().remove(stream);
  if (!found) return no_stream();
  found->abort();
  found->close();
  return ACL_SUCCESS;
}

aclError aclrtSynchronizeStream(aclrtStream stream) { return aclrtSynchronizeStreamWithTimeout(stream, -1); }

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout) {
  log("aclrtSynchronizeStream", -1, stream);
  A2A_FAKE_READY();
  const auto found = acl_stream(stream);
  if (!found) return no_stream();
  if (timeout < 0) return acl_result(found->synchronize(std::nullopt));
  return acl_result(found->synchronize(Clock::now() + std::chrono::milliseconds(timeout)));
}

aclError aclrtSynchronizeDevice() { return aclrtSynchronizeStream(nullptr); }

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
  A2A_FAKE_READY();
  A2A_FAKE_NOT_NULL(status);
  const auto found = acl_stream(stream);
  if (!found) return no_stream();
  const Failure failure = found->synchronize(Clock::now());
  const bool busy = failure.kind == Failure::not_ready;
  *status = busy ? ACL_STREAM_STATUS_NOT_READY : ACL_STREAM_STATUS_COMPLETE;
  return busy ? ACL_SUCCESS : acl_result(failure);
}

aclError aclrtStreamAbort(aclrtStream stream) {
  log("aclrtStreamAbort", -1, stream);
  A2A_FAKE_READY();
  A2A_FAKE_NOT_NULL(stream);
  const auto found = streams().find(stream);
  if (!found) return no_stream();
  found->abort();
  return ACL_SUCCESS;
}

aclError aclrtCreateEvent(aclrtEvent* event) { return create_event(event); }
aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t) { return create_event(event); }

aclError aclrtDestroyEvent(aclrtEvent event) {
  A2A_FAKE_READY();
  return events().remove(event) ? ACL_SUCCESS : no_event();
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  log("aclrtRecordEvent", -1, stream);
  A2A_FAKE_READY();
  const auto found = acl_stream(stream);
  const auto marked = events().find(event);
  if (!found) return no_stream();
  if (!marked) return no_event();
  found->record(*marked);
  return ACL_SUCCESS;
}

aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream) {
  A2A_FAKE_READY();
  const auto found = acl_stream(stream);
  const auto marked = events().find(event);
  if (!found) return no_stream();
  if (!marked) return no_event();
  const std::lock_guard lock(marked->mutex);
  marked->latest = nullptr;
  return ACL_SUCCESS;
}

// The arguments stand the other way round than those of aclrtRecordEvent. What a wait for an event that was never
// recorded does is not documented; the double refuses it.
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  log("aclrtStreamWaitEvent", -1, stream);
  A2A_FAKE_READY();
  const auto found = acl_stream(stream);
  const auto marked = events().find(event);
  if (!found) return no_stream();
  if (!marked) return no_event();
  if (found->wait(*marked)) return ACL_SUCCESS;
  return acl_refuse(ACL_ERROR_RT_PARAM_INVALID, "a stream waits for an event that was never recorded");
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  A2A_FAKE_READY();
  A2A_FAKE_NOT_NULL(status);
  const auto marked = events().find(event);
  if (!marked) return no_event();
  const auto moment = latest(*marked);
  const auto reached = moment ? moment->reached() : std::nullopt;
  // Not recorded, not reached and failed look alike.
  *status = reached && !*reached ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return ACL_SUCCESS;
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
  log("aclrtSynchronizeEvent");
  A2A_FAKE_READY();
  const auto marked = events().find(event);
  if (!marked) return no_event();
  const auto moment = latest(*marked);
  if (!moment) return acl_refuse(ACL_ERROR_RT_PARAM_INVALID, "the event was never recorded");
  return acl_result(moment->wait([] { return false; }));
}
