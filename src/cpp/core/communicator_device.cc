// Operations on device memory: connects their transport, and compares them over the host before they start.
#include <string_view>
#include <utility>

#include "core/communicator_state.h"
#include "core/connect.h"
#include "runtime/environment.h"

namespace a2a {
namespace {

// Throws what one rank alone can find wrong with an operation. Returns whether the stream records it into a graph.
bool require_runnable(const DeviceTransport& transport, const Batch& batch, const Call& call) {
  if (call.device != transport.index()) {
    throw Error(Code::invalid_argument, std::string("the tensors are on ") + to_string(call.memory) + ":" +
                                            std::to_string(call.device) + ", but this communicator uses " +
                                            transport.name());
  }
  return transport.check(batch, call.stream);
}

}  // namespace

const char* to_string(Check check) { return check == Check::off ? "off" : check == Check::first ? "first" : "always"; }

Check default_check() {
  constexpr Check kChecks[] = {Check::off, Check::first, Check::always};
  const auto word = word_variable("A2A_CHECK", {to_string(kChecks[0]), to_string(kChecks[1]), to_string(kChecks[2])});
  return word ? kChecks[*word] : Check::first;
}

// Requires device_order.
std::shared_ptr<Work> Communicator::start_on_device(Batch& batch, const Call& call) {
  batch.deadline = state_->deadline(call.deadline);
  const auto transport = connected(call.memory, call.device, batch.deadline);
  const auto current = transport->make_current();  // once for all calls of the driver below
  batch.signature = {call.op, call.memory, call.dtype, 0, call.plan, call.fold};
  bool recorded = false;
  try {
    recorded = require_runnable(*transport, batch, call);
  } catch (const Error& error) {
    refuse(call, error.what());
    throw;
  }
  std::unique_lock lock(state_->mutex);
  const auto host = state_->want_open(call.op);
  const bool compare = state_->sign(batch, call) || size() == 1;
  batch.way = compare ? Way::compare : Way::pass;
  if (state_->status != nullptr) state_->status->begin(batch, last_tick());
  const auto operation = Recorder::begin(state_->recorder, batch);
  return operation.run([&] {
    const auto comparison = compare ? host->start(Batch(batch)) : nullptr;
    const auto problem = compare ? std::nullopt : host->pass(batch.signature);
    lock.unlock();
    if (problem) {
      transport->fail(*problem);  // other ranks may have enqueued it already
      throw *problem;
    }
    try {
      if (comparison != nullptr) comparison->wait();
    } catch (const Interrupted& error) {  // the peers will start it
      transport->fail(
          Error(error.code(), name_of(batch.signature) + ": rank " + std::to_string(rank()) + ": " + error.what()));
      throw;
    }
    return transport->start(std::move(batch), call.stream, recorded);
  });
}

std::shared_ptr<DeviceTransport> Communicator::connected(Memory memory, int device, Deadline deadline) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->want_open(Op::connect);
    if (const auto found = state_->devices.find(memory); found != state_->devices.end()) return found->second;
  }
  return meet_on_device(memory, device, deadline);
}

std::shared_ptr<DeviceTransport> Communicator::meet_on_device(Memory memory, int device, Deadline deadline) {
  DeviceMeeting meeting;
  {
    const std::lock_guard lock(state_->mutex);
    meeting.host = state_->want_open(Op::connect);
    if (const auto given = state_->adopted.find(memory); given != state_->adopted.end())
      meeting.adopted = given->second;
    meeting.rank_table = memory == Memory::npu ? state_->rank_table : "";
  }
  meeting.rank = rank(), meeting.size = size(), meeting.deadline = deadline, meeting.check = state_->options.check;
  meeting.tell_all = [&](std::string_view mine) { return allgather_bytes(mine, Op::connect, deadline); };
  meeting.refuse = [&](std::string_view reason) {
    Call call;
    call.op = Op::connect, call.deadline = deadline;
    refuse(call, reason);
  };
  meeting.peer_refuses = [&] {
    Signature next;
    next.op = Op::connect, next.number = last_number() + 1;
    return meeting.host->refusal(next);
  };
  auto transport = connect_device(memory, device, meeting);
  const std::lock_guard lock(state_->mutex);
  state_->comparisons.restart();
  return state_->devices[memory] = std::move(transport);
}

void Communicator::connect(Memory memory, int device, std::optional<Deadline> deadline) {
  state_->home.refuse_if_inherited();
  if (memory == Memory::host) return;
  const std::lock_guard order(state_->device_order);
  const auto transport = connected(memory, device, state_->deadline(deadline));
  if (transport->index() == device) return;
  throw Error(Code::invalid_argument, std::string("connect: device is ") + to_string(memory) + ":" +
                                          std::to_string(device) + ", but this communicator uses " + transport->name());
}

void Communicator::adopt(Memory memory, void* vendor_communicator) {
  state_->home.refuse_if_inherited();
  const std::lock_guard lock(state_->mutex);
  void*& adopted = state_->adopted[memory];
  if (vendor_communicator != nullptr && adopted == vendor_communicator) return;
  if (memory == Memory::host || vendor_communicator == nullptr || state_->devices.contains(memory)) {
    throw Error(Code::invalid_argument,
                "adopt: wants a communicator for device memory, before the first operation on it");
  }
  adopted = vendor_communicator;
}

void Communicator::use_rank_table(const std::string& path) {
  state_->home.refuse_if_inherited();
  const std::lock_guard lock(state_->mutex);
  state_->rank_table = path;
}

void Communicator::drain_devices(Deadline deadline) {
  const std::lock_guard order(state_->device_order);
  for (const auto& [_, transport] : state_->devices) transport->drain(deadline);
}

void Communicator::close_devices() {
  const std::lock_guard order(state_->device_order);
  for (const auto& [_, transport] : state_->devices) transport->close();
}

void Communicator::drop_devices() noexcept {
  decltype(state_->devices) devices;
  {
    const std::lock_guard lock(state_->mutex);
    devices.swap(state_->devices);
  }
  for (const auto& [_, transport] : devices) transport->let_go();
}

}  // namespace a2a
