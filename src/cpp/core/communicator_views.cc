// Views of the peers' tensors: exchanges their descriptions, and opens the views.
#include <new>
#include <string>

#include "core/communicator_state.h"

namespace a2a {
namespace {

size_t bytes_of(DType dtype, std::span<const int64_t> shape) {
  size_t bytes = dtype.bytes();
  for (const int64_t entries : shape) {
    if (entries < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(entries), &bytes)) {
      throw Error(Code::invalid_argument, "the tensor's shape contains " + std::to_string(entries));
    }
  }
  return bytes;
}

}  // namespace

std::shared_ptr<Views> Communicator::start_views(const void* data, DType dtype, std::span<const int64_t> shape,
                                                 std::optional<Deadline> deadline) {
  state_->home.refuse_if_inherited();
  const auto host = state_->open(Op::allgather_views);
  Call call;
  call.op = Op::allgather_views;
  call.dtype = dtype;
  call.deadline = deadline;
  std::shared_ptr<Exposure> exposure;
  std::shared_ptr<Views> views;
  try {
    const size_t bytes = bytes_of(dtype, shape);
    Footprint shown;  // peers look at it as soon as the operation is done
    shown.read(std::span{static_cast<const std::byte*>(data), bytes});
    state_->conflicting(shown).wait(state_->deadline(deadline));
    exposure = host->expose(static_cast<const std::byte*>(data), bytes, dtype, shape);
    views = std::make_shared<Views>(exposure);
  } catch (const Error& error) {
    const std::string reason =
        std::string(to_string(call.op)) + ": rank " + std::to_string(rank()) + ": " + error.what();
    refuse(call, reason);
    throw Error(error.code(), reason);
  } catch (const std::bad_alloc& error) {
    refuse(call, error.what());
    throw;
  }
  exposure->started(state_->submit(call, [&](Batch& batch) { exposure->describe(batch); }));
  return views;
}

std::shared_ptr<Views> Communicator::allgather_views(const void* data, DType dtype, std::span<const int64_t> shape,
                                                     std::optional<Deadline> deadline) {
  auto views = start_views(data, dtype, shape, deadline);
  views->work()->wait();
  return views;
}

Views::Views(std::shared_ptr<Exposure> exposure) : exposure_(std::move(exposure)) {}

Views::~Views() { release(); }

const std::shared_ptr<Work>& Views::work() const { return exposure_->work(); }

int Views::size() const { return exposure_->size(); }

View Views::view(Rank rank) const { return exposure_->view(rank); }

void Views::release() noexcept { exposure_->end_viewing(); }

bool Views::released() const { return !exposure_->viewing(); }

bool Views::wait_released(Deadline deadline) {
  release();  // two ranks that wait without releasing would wait for each other
  return exposure_->wait_returned(deadline);
}

}  // namespace a2a
