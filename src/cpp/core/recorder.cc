#include "core/recorder.h"

#include <functional>
#include <mutex>
#include <utility>

#include "core/record_file.h"

namespace a2a {
namespace {

// Calls end(error), or end(nullptr), whenever a caller sees that it is over.
class FollowedWork final : public Work {
 public:
  using End = std::function<void(const Error*)>;
  FollowedWork(std::shared_ptr<Work> work, End end) : work_(std::move(work)), end_(std::move(end)) {}

  bool done() override {
    if (!work_->done()) return false;
    try {
      wait_until(Deadline::never());
    } catch (const Error&) {  // a wait throws it again
    }
    return true;
  }

  bool wait_until(Deadline deadline) override {
    return sees([&] { return work_->wait_until(deadline); });
  }
  bool wait_briefly() override {
    return sees([&] { return work_->wait_briefly(); });
  }

  void order_before(Stream stream) override { work_->order_before(stream); }
  bool arrived(Rank rank) override { return work_->arrived(rank); }
  Rank source() override { return work_->source(); }
  bool let_go() override {
    if (!work_->let_go()) return false;
    (void)done();  // of a Work that the program has dropped nobody else sees the end
    return true;
  }

 private:
  // Runs wait(), which returns whether the operation has finished, or throws its error.
  template <class Wait>
  bool sees(const Wait& wait) {
    try {
      if (!wait()) return false;
    } catch (const Interrupted&) {  // the operation goes on
      throw;
    } catch (const Error& error) {
      end_(&error);
      throw;
    }
    end_(nullptr);
    return true;
  }

  std::shared_ptr<Work> work_;
  const End end_;
};

}  // namespace

std::shared_ptr<Recorder> Recorder::open(Rank rank, int size, uint64_t group, std::string_view label) {
  auto dump = Dump::open(rank, size, group, label);
  auto trace = Trace::open(rank, size, group, label);
  auto metrics = Metrics::open(rank, size, label);
  if (dump == nullptr && trace == nullptr && metrics == nullptr) return nullptr;
  return std::shared_ptr<Recorder>(new Recorder(std::move(dump), std::move(trace), std::move(metrics)));
}

Recorder::Operation Recorder::begin(const std::shared_ptr<Recorder>& recorder, const Batch& batch) {
  if (recorder == nullptr) return {};
  if (recorder->dump_ != nullptr) recorder->dump_->begin(batch);
  if (recorder->trace_ != nullptr) recorder->trace_->begin(batch);
  if (recorder->metrics_ != nullptr) recorder->metrics_->begin(batch);
  return {recorder, batch.signature.number};
}

void Recorder::Operation::end(const Error* error) const {
  if (recorder_ == nullptr) return;
  if (recorder_->dump_ != nullptr) recorder_->dump_->end(number_, error);
  if (recorder_->trace_ != nullptr) recorder_->trace_->end(number_, error != nullptr);
  if (recorder_->metrics_ != nullptr) recorder_->metrics_->end(number_, error != nullptr);
}

std::shared_ptr<Work> Recorder::Operation::follow(std::shared_ptr<Work> work) const {
  return std::make_shared<FollowedWork>(std::move(work),
                                        [operation = *this](const Error* error) { operation.end(error); });
}

std::shared_ptr<Work> Recorder::follow(const std::shared_ptr<Recorder>& recorder, const Message& message,
                                       bool asynchronous, std::shared_ptr<Work> work) {
  if (recorder == nullptr || (recorder->trace_ == nullptr && recorder->metrics_ == nullptr)) return work;
  timeline::Message entry;
  entry.started = wall_clock();
  entry.amount = message.bytes;
  entry.peer = message.peer;
  entry.sends = message.sends, entry.asynchronous = asynchronous;
  write_text(entry.dtype, to_string(message.dtype));
  Message counted;  // without what the message holds
  counted.sends = message.sends, counted.bytes = message.bytes;
  // It is alive when `end` is called, which is within its own functions.
  Work* const posted = work.get();
  auto once = std::make_shared<std::once_flag>();
  return std::make_shared<FollowedWork>(std::move(work), [=](const Error* error) {
    std::call_once(*once, [&] {
      timeline::Message ended = entry;
      ended.ended = wall_clock();
      ended.failed = error != nullptr;
      if (error == nullptr && !entry.sends) ended.peer = posted->source();
      if (recorder->trace_ != nullptr) recorder->trace_->add(ended);
      if (recorder->metrics_ == nullptr) return;
      recorder->metrics_->add(counted, ended.peer, entry.asynchronous ? 0 : ended.ended - entry.started, ended.failed);
    });
  });
}

void Recorder::close(record::Fate fate, std::string_view reason) noexcept {
  if (dump_ != nullptr) dump_->close(fate, reason);
  if (trace_ != nullptr) trace_->close();
}

}  // namespace a2a
