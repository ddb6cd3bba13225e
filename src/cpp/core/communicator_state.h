// The state of a communicator. Not public.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "a2a/communicator.h"
#include "core/device_transport.h"
#include "core/in_flight.h"
#include "core/recorder.h"
#include "core/status_page.h"
#include "core/transport.h"
#include "runtime/fork_guard.h"
#include "runtime/last_tick.h"

namespace a2a {

// Decides which operations the ranks compare if they run on a device. All ranks count alike, also those whose arguments
// are refused and that cannot know which memory was meant. After a call in which ranks disagreed they may count
// differently. Then some ranks compare operations that others pass, which only costs the comparison.
class Comparisons {
 public:
  explicit Comparisons(Check check) : check_(check) {}

  // Returns whether the next operation is compared, and counts it.
  bool next(const Call& call) {
    bool first = false;
    if (call.plan == 0 || is_of_routing(call.plan)) {
      first = unplanned_++ < kFirst;
    } else {
      if (ran_.size() <= call.plan) ran_.resize(call.plan + 1);
      first = !ran_[call.plan];
      ran_[call.plan] = true;
    }
    return check_ == Check::always || (check_ == Check::first && first);
  }

  // Starts the counts again. Called when the devices have been connected.
  void restart() {
    unplanned_ = 0;
    ran_.clear();
  }

 private:
  static constexpr unsigned kFirst = 16;

  Check check_;
  uint64_t unplanned_ = 0;
  std::vector<bool> ran_;  // plans, by number
};

// Calls `what`, which allocates what an operation needs before it takes its number. If that fails, takes the number,
// tells the peers, and rethrows.
template <class Prepare>
auto prepare(Communicator& comm, const Call& call, Prepare&& what) {
  try {
    return what();
  } catch (const std::exception& error) {
    comm.refuse(call, error.what());
    throw;
  }
}

struct Communicator::State {
  Rank rank = 0;
  int size = 1;
  const bool folds;                                // Transport::folds()
  const std::shared_ptr<const Topology> topology;  // empty: all ranks are on one host
  const Options options;
  std::atomic<double> timeout_seconds;  // the options', until it is changed
  std::mutex device_order;   // held while an operation on a device is started, which may take long; guards what follows
  Batch device_blank;        // for the next operation on a device, with the memory of an earlier one
  mutable std::mutex mutex;  // guards what follows; held while an operation is started, so that numbers are in order
  std::shared_ptr<Transport> host;     // empty once closed
  std::string retired;                 // why; "": it is not
  uint64_t group = 0;                  // the same on all ranks, and different for other groups
  std::string label;                   // "world", "split #12 of world"
  std::shared_ptr<Recorder> recorder;  // nullptr: nothing is recorded
  std::shared_ptr<Status> status;      // nullptr: there was no room for it
  std::map<Memory, std::shared_ptr<DeviceTransport>> devices;
  std::map<Memory, void*> adopted;
  std::string rank_table;
  Batch blank;  // for the next operation, with the memory of an earlier one
  Scratch scratch;
  uint64_t number = 0;
  uint64_t plans = 0;
  uint64_t shrinks = 0;
  std::shared_ptr<Communicator> smaller;  // of a shrink() that failed after the ranks had agreed
  Comparisons comparisons;

  State(Rank rank_, int size_, Options options_, std::unique_ptr<Transport> host_)
      : rank(rank_),
        size(size_),
        folds(host_->folds()),
        topology(host_->topology()),
        options(std::move(options_)),
        timeout_seconds(options.timeout_seconds),
        host(std::move(host_)),
        comparisons(options.check) {}

  // Gives the group its identity, which records and `a2a status` show. Call once, before the first operation.
  void identify(uint64_t group_, std::string label_) {
    group = group_, label = std::move(label_);
    recorder = Recorder::open(rank, size, group, label);
    status = Status::open(rank, size, topology == nullptr ? 1 : topology->hosts(), group, label);
    if (status == nullptr) return;
    if (recorder != nullptr) status->count_in(recorder->metrics());
    host->show_in(status);
  }

  // Returns the given deadline, or now + the communicator's timeout, which may be a tick late.
  Deadline deadline(const std::optional<Deadline>& given, Deadline::Clock::time_point tick = last_tick()) const {
    return given ? *given : Deadline::after_seconds(timeout_seconds, tick + kTick);
  }

  std::shared_ptr<Communicator> kept_smaller() const {
    std::lock_guard lock(mutex);
    return smaller;
  }
  void keep_smaller(std::shared_ptr<Communicator> kept) {
    {
      std::lock_guard lock(mutex);
      smaller.swap(kept);
    }
  }  // the one kept before is destroyed without the mutex

  bool is_retired() const {
    std::lock_guard lock(mutex);
    return !retired.empty();
  }

  // Returns the host transport. Throws when closed.
  std::shared_ptr<Transport> open(Op op) const {
    std::lock_guard lock(mutex);
    return want_open(op);
  }

  const std::shared_ptr<Transport>& want_open(Op op) const {
    if (!retired.empty()) throw Error(Code::aborted, std::string(to_string(op)) + ": " + retired);
    if (host != nullptr) return host;
    throw Error(Code::aborted,
                std::string(to_string(op)) + ": rank " + std::to_string(rank) + " has closed this communicator");
  }

  // Returns what is in flight and uses that memory. Once it is finished, nothing does that was started before.
  Predecessors conflicting(const Footprint& memory) {
    std::shared_ptr<Transport> open;
    {
      std::lock_guard lock(mutex);
      open = host;
    }
    return open != nullptr ? open->conflicting(memory) : Predecessors();
  }

  // Puts the stages of a plan over these buffers into an empty batch. Requires the mutex, or device_order for a plan of
  // one stage.
  void put_stages(Batch& batch, const Plan& plan, std::span<const void* const> send, std::span<void* const> recv,
                  std::span<const TensorLayout> send_layouts, std::span<const TensorLayout> recv_layouts) {
    // A send run is only read; Run has one pointer type for both directions.
    const auto* from = reinterpret_cast<std::byte* const*>(const_cast<void* const*>(send.data()));
    const auto* to = reinterpret_cast<std::byte* const*>(recv.data());
    const Buffers sends{plan.sends(), {from, send.size()}, send_layouts};
    const Buffers recvs{plan.recvs(), {to, recv.size()}, recv_layouts};
    if (plan.stages().size() > 1) return set_stages(batch, plan, sends, recvs, scratch);
    const Stage& stage = plan.stages().front();
    batch.signature.agreement = plan.agreement();
    batch.folds = stage.sink == Sink::fold;
    if (!stage.parts.empty()) batch.parts = stage.parts;
    set_runs(batch, sends, recvs);
  }

  // Gives the operation its number. Returns whether ranks compare it if it runs on a device. Requires the mutex.
  bool sign(Batch& batch, const Call& call) {
    const uint32_t agreement = batch.signature.agreement;
    batch.signature = {call.op, call.memory, call.dtype, ++number, call.plan, call.fold, agreement};
    batch.unit_bytes = call.unit_bytes;
    batch.asynchronous = call.asynchronous;
    return comparisons.next(call);
  }

  // Starts on the host what `fill` puts into an empty batch.
  template <class Fill>
  std::shared_ptr<Work> submit(const Call& call, Fill&& fill) {
    home.refuse_if_inherited();  // before the mutex, which another thread may have held at the fork
    std::lock_guard lock(mutex);
    want_open(call.op);
    return begin_next(call, fill, [&] { return host->start(std::move(blank)); });
  }

  // The same as submit(). Returns nullptr if it would have to wait for a lock.
  template <class Fill>
  std::shared_ptr<Work> try_submit(const Call& call, Fill&& fill) {
    home.refuse_if_inherited();
    const std::unique_lock lock(mutex, std::try_to_lock);
    if (!lock) return nullptr;
    const auto claimed = want_open(call.op)->claim();
    if (!claimed) return nullptr;
    return begin_next(call, fill, [&] { return host->start_claimed(std::move(blank)); });
  }

  // Fills `blank` and starts it by `start`. Requires the mutex.
  template <class Fill, class Start>
  std::shared_ptr<Work> begin_next(const Call& call, Fill&& fill, Start&& start) {
    blank.clear();
    try {
      fill(blank);
    } catch (const std::exception& error) {  // probably out of memory; the number is taken, so this rank stays in step
      blank.clear();
      blank.refusal = error.what();
      begin(call, start);
      throw;
    }
    return begin(call, start);
  }

  template <class Start>
  std::shared_ptr<Work> begin(const Call& call, Start&& start) {
    const auto tick = last_tick();
    blank.deadline = deadline(call.deadline, tick);
    sign(blank, call);
    if (status != nullptr) status->begin(blank, tick);
    return Recorder::begin(recorder, blank).run(start);
  }

  std::shared_ptr<Work> submit(const Call& call) {
    return submit(call, [](Batch&) {});
  }

  // The process that made the communicator owns all that is shared.
  const ForkGuard home;
};

}  // namespace a2a
