#include "engine/communicator.h"

#include <cstring>

namespace fake {

Communicator::Communicator(std::shared_ptr<Mesh> links, int on_device, Policy policy)
    : mesh(std::move(links)),
      device(on_device),
      rank(mesh->rank),
      size(mesh->size),
      policy_(std::move(policy)),
      refuse_at_(control_operation("A2A_FAKE_REFUSE", rank)),
      fail_at_(control_operation("A2A_FAKE_ASYNC_ERROR", rank)),
      stall_at_(control_operation("A2A_FAKE_STALL", rank)) {}

Communicator::~Communicator() { mesh->close(); }

std::optional<uint64_t> Communicator::count() {
  const std::lock_guard lock(mutex_);
  if (++calls_ != refuse_at_) return calls_;
  set_error("operation " + std::to_string(calls_) + " is refused, as A2A_FAKE_REFUSE asks");
  return std::nullopt;
}

void Communicator::enqueue(Stream& stream, Operation operation, uint64_t call) {
  stream.push([self = shared_from_this(), shared = std::make_shared<const Operation>(std::move(operation)), call] {
    // A copy for each run, because a graph runs it again under another number.
    auto own = std::make_shared<Operation>(*shared);
    const std::lock_guard lock(self->mutex_);
    const uint64_t turn = ++self->turns_;
    self->waiting_.insert(turn);
    if (own->collective) {
      ++self->collectives_;
      for (Part& part : own->sends) part.header.number = self->collectives_;
      for (Part& part : own->recvs) part.header.number = self->collectives_;
    }
    return [self, own, turn, call](const Stream& on, const Failure& earlier) {
      return self->run(turn, call, *own, on, earlier);
    };
  });
}

Failure Communicator::run(uint64_t turn, uint64_t call, Operation& operation, const Stream& stream,
                          const Failure& earlier) {
  std::unique_lock lock(mutex_);
  while (!earlier && *waiting_.begin() != turn && !ended_ && !stream.stopping()) {
    changed_.wait_for(lock, std::chrono::milliseconds(5));
  }
  Failure failure = earlier ? earlier : failure_;  // a communicator that failed once stays so
  lock.unlock();
  if (!failure) {
    failure = perform(call, operation, stream);
    if (failure) {
      failure.text = std::string(operation.name) + ": " + failure.text;
      fail(failure);
    }
  }
  if (failure && !earlier && !policy_.stream_fails) failure = linger(stream, false);
  operation = {};  // lets go of the memory
  lock.lock();
  waiting_.erase(turn);
  changed_.notify_all();
  return failure;
}

Failure Communicator::perform(uint64_t call, const Operation& operation, const Stream& stream) {
  if (ended_) return {Failure::aborted, "the communicator is gone"};
  if (call == stall_at_) return linger(stream, true);
  if (call == fail_at_) {
    return {Failure::injected, "operation " + std::to_string(call) + " fails, as A2A_FAKE_ASYNC_ERROR asks"};
  }
  if (operation.still_valid) {
    if (std::string why = operation.still_valid(); !why.empty()) return {Failure::misuse, why};
  }
  return move(operation, stream);
}

// Poison makes a reader that does not wait for the stream see garbage, and a wrong displacement visible. A source is
// looked at twice, because its owner may not write to it before the operation is done.
Failure Communicator::move(const Operation& operation, const Stream& stream) {
  const auto sums = [&] {
    uint64_t sum = 0;
    for (const Part& part : operation.sends) sum = hash(part.memory.data, part.memory.bytes, sum);
    return sum;
  };
  for (const Part& part : operation.recvs) {
    // What a rank receives from itself may be where it is already (an all-gather in place).
    if (part.peer != rank && part.memory.bytes > 0) std::memset(part.memory.data, kPoison, part.memory.bytes);
  }
  const uint64_t before = sums();
  delay();
  std::optional<Clock::time_point> deadline;
  if (policy_.limit_seconds && policy_.rules.on_mismatch != OnMismatch::hang) {
    deadline = Clock::now() +
               std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*policy_.limit_seconds));
  }
  const auto stop = [&] { return ended_ || stream.stopping(); };
  Failure failure = mesh->exchange(operation.sends, operation.recvs, policy_.rules, stop, deadline);
  if (!failure && sums() != before) {
    failure = {Failure::misuse, "rank " + std::to_string(rank) + " wrote to what it sends before it was sent"};
  }
  if (!failure && operation.then) operation.then();
  return failure;
}

// Holds the stream until the communicator is aborted or destroyed.
Failure Communicator::linger(const Stream& stream, bool fails) {
  std::unique_lock lock(mutex_);
  while (!ended_ && !stream.stopping()) changed_.wait_for(lock, std::chrono::milliseconds(5));
  return fails ? Failure{Failure::aborted, "aborted"} : Failure{};
}

Failure Communicator::failure() {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return failure_;
  }
  return policy_.stream_fails && !ended_ ? mesh->lost() : Failure{};
}

void Communicator::fail(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = failure;
  changed_.notify_all();
}

void Communicator::end(bool leaving) {
  if (ended_.exchange(true)) return;
  if (leaving) mesh->leave();
  mesh->close();
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void Communicator::drain() {
  std::unique_lock lock(mutex_);
  while (!waiting_.empty() && !ended_) changed_.wait_for(lock, std::chrono::milliseconds(5));
}

}  // namespace fake
