// Sends and receives the messages of a communicator.
#include "a2a/communicator.h"
#include "core/communicator_state.h"
#include "core/message.h"

namespace a2a {
namespace {

// Makes the message use packed memory. MessageWork copies the bytes to and from it.
void pack(Message& message, std::span<const TensorLayout> layouts) {
  if (layouts.empty() || message.bytes == 0) return;
  const std::shared_ptr<PackedTensor> packed(
      new PackedTensor{message.data, Strides(layouts[0]), std::make_unique_for_overwrite<std::byte[]>(message.bytes)});
  message.data = packed->packed.get();
  message.packed = packed;
}

}  // namespace

std::shared_ptr<Work> Communicator::send(const void* data, size_t bytes, Rank peer, int64_t tag, const Call& call) {
  // A send only reads; Message has one pointer type for both directions.
  auto* const from = static_cast<std::byte*>(const_cast<void*>(data));
  return start_message({true, peer, tag, from, bytes, call.dtype}, call);
}

std::shared_ptr<Work> Communicator::recv(void* data, size_t bytes, Rank peer, int64_t tag, const Call& call) {
  const Rank source = peer < 0 ? kAnySource : peer;
  return start_message({false, source, tag, static_cast<std::byte*>(data), bytes, call.dtype}, call);
}

std::shared_ptr<Work> Communicator::start_message(Message message, const Call& call) {
  if (message.peer >= size() || (message.sends && message.peer < 0)) {
    throw Error(Code::invalid_argument,
                "peer is " + std::to_string(message.peer) + ", but the group has " + std::to_string(size()) + " ranks");
  }
  if (call.memory != Memory::host) {
    const std::string reason = name_of(message) + ": messages of " + to_string(call.memory) + " memory";
    refuse_message(message.sends, message.peer, message.tag, reason);
    throw Error(Code::unsupported, reason);
  }
  state_->home.refuse_if_inherited();
  try {
    pack(message, message.sends ? call.send_layouts : call.recv_layouts);
  } catch (const std::exception& error) {  // too many dimensions, or no memory
    refuse_message(message.sends, message.peer, message.tag, error.what());
    throw;
  }
  message.deadline = state_->deadline(call.deadline);
  const auto host = state_->open(call.op);
  if (state_->status != nullptr) {
    const std::lock_guard lock(state_->mutex);
    state_->status->add(message);
  }
  return Recorder::follow(state_->recorder, message, call.asynchronous, host->post(message));
}

void Communicator::refuse_message(bool sends, Rank peer, int64_t tag, std::string_view reason) {
  if (peer >= size() || (sends && peer < 0)) return;  // there is no rank to tell
  Message message{sends, peer < 0 ? kAnySource : peer, tag, nullptr, 0, {}};
  message.refusal = reason.empty() ? "no reason given" : reason;
  state_->home.refuse_if_inherited();
  message.deadline = state_->deadline({});
  const auto work = state_->open(sends ? Op::send : Op::recv)->post(message);
  if (sends) work->wait_until(Deadline::after_seconds(1));
}

}  // namespace a2a
