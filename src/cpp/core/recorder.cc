#include "core/recorder.h"

#include <utility>

namespace a2a {
namespace {

// Records the end of an operation when a caller sees it.
class FollowedWork final : public Work {
 public:
  FollowedWork(std::shared_ptr<Work> work, Recorder::Operation operation)
      : work_(std::move(work)), operation_(std::move(operation)) {}

  bool done() override {
    if (!work_->done()) return false;
    try {
      wait_until(Deadline::never());
    } catch (const Error&) {  // a wait throws it again
    }
    return true;
  }

  bool wait_until(Deadline deadline) override {
    try {
      if (!work_->wait_until(deadline)) return false;
    } catch (const Interrupted&) {  // the operation goes on
      throw;
    } catch (const Error& error) {
      operation_.end(&error);
      throw;
    }
    operation_.end(nullptr);
    return true;
  }

  void order_before(Stream stream) override { work_->order_before(stream); }
  bool arrived(Rank rank) override { return work_->arrived(rank); }
  bool let_go() override {
    if (!work_->let_go()) return false;
    (void)done();  // of a Work that the program has dropped nobody else sees the end
    return true;
  }

 private:
  std::shared_ptr<Work> work_;
  Recorder::Operation operation_;
};

}  // namespace

std::shared_ptr<Recorder> Recorder::open(Rank rank, int size, uint64_t group, std::string_view label) {
  auto dump = Dump::open(rank, size, group, label);
  auto trace = Trace::open(rank, size, group, label);
  if (dump == nullptr && trace == nullptr) return nullptr;
  return std::shared_ptr<Recorder>(new Recorder(std::move(dump), std::move(trace), group, label));
}

Recorder::Operation Recorder::begin(const std::shared_ptr<Recorder>& recorder, const Batch& batch) {
  if (recorder == nullptr) return {};
  if (recorder->dump_ != nullptr) recorder->dump_->begin(batch);
  if (recorder->trace_ != nullptr) recorder->trace_->begin(batch);
  return {recorder, batch.signature.number};
}

void Recorder::Operation::end(const Error* error) const {
  if (recorder_ == nullptr) return;
  if (recorder_->dump_ != nullptr) recorder_->dump_->end(number_, error);
  if (recorder_->trace_ != nullptr) recorder_->trace_->end(number_, error != nullptr);
}

std::shared_ptr<Work> Recorder::Operation::follow(std::shared_ptr<Work> work) const {
  return std::make_shared<FollowedWork>(std::move(work), *this);
}

void Recorder::close(record::Fate fate, std::string_view reason) noexcept {
  if (dump_ != nullptr) dump_->close(fate, reason);
  if (trace_ != nullptr) trace_->flush();
}

}  // namespace a2a
