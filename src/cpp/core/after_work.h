// An operation that is followed by work of this rank alone, once the bytes of a peer, or of all peers, have arrived.
#pragma once

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "a2a/work.h"
#include "core/in_flight.h"

namespace a2a {

class AfterWork final : public InFlight {
 public:
  // Calls after(p) once for each rank p < `ranks`, when its bytes have arrived; not after a failure. With each_rank
  // false it calls after(0) alone, when all have arrived. after() uses `memory`.
  AfterWork(std::shared_ptr<Work> work, std::string name, int ranks, bool each_rank,
            std::shared_ptr<const Footprint> memory, std::function<void(Rank)> after)
      : work_(std::move(work)),
        name_(std::move(name)),
        memory_(std::move(memory)),
        after_(std::move(after)),
        each_rank_(each_rank),
        ran_(each_rank ? static_cast<size_t>(ranks) : 1) {}

  bool done() override {
    if (!work_->done()) return false;
    run_all();
    return true;
  }
  bool wait_until(Deadline deadline) override { return work_->wait_until(deadline) && finish(); }
  bool wait_briefly() override { return work_->wait_briefly() && finish(); }
  bool arrived(Rank rank) override {
    if (each_rank_ ? !work_->arrived(rank) : !work_->done()) return false;
    const std::lock_guard lock(mutex_);
    if (!each_rank_) look_for_failure();
    run(each_rank_ ? rank : 0);
    return failure_ == nullptr;
  }
  bool let_go() override { return work_->let_go() && done(); }

  // Whether after() was called for all ranks, or never will be.
  bool finished() const override {
    const std::lock_guard lock(mutex_);
    return failure_ != nullptr || std::ranges::all_of(ran_, [](bool ran) { return ran; });
  }
  std::string name() const override { return name_; }
  const Footprint& footprint() const { return *memory_; }

 private:
  // Requires the mutex. After a failure it does nothing.
  void run(Rank rank) noexcept {
    if (failure_ != nullptr || ran_[static_cast<size_t>(rank)]) return;
    ran_[static_cast<size_t>(rank)] = true;
    try {
      after_(rank);
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  // Stores the error of the operation, if it has one. Requires that the operation is done.
  void look_for_failure() noexcept {
    try {
      work_->wait();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  void run_all() noexcept {
    const std::lock_guard lock(mutex_);
    if (failure_ == nullptr) look_for_failure();
    for (size_t rank = 0; rank < ran_.size(); ++rank) run(static_cast<Rank>(rank));
  }
  bool finish() {
    run_all();
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    return true;
  }

  const std::shared_ptr<Work> work_;
  const std::string name_;
  const std::shared_ptr<const Footprint> memory_;
  const std::function<void(Rank)> after_;
  const bool each_rank_;
  mutable std::mutex mutex_;
  std::vector<bool> ran_;
  std::exception_ptr failure_;
};

}  // namespace a2a
