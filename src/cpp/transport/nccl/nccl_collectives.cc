#include "transport/nccl/nccl_collectives.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "a2a/work.h"
#include "runtime/background.h"
#include "transport/nccl/cuda_driver.h"

namespace a2a::nccl {
namespace {

using Runs = std::span<const Run>;

// Which of NCCL's calls runs an operation. All ranks choose alike, because all know the operation and have the same
// version. Everything that is no collective of NCCL is one group of sends and receives.
enum class Means { group, alltoall, allgather };

class NcclCollectives final : public device::Collectives {
 public:
  NcclCollectives(Comm comm, Rank rank, int size, bool ours)
      : api_(api()), comm_(comm), rank_(rank), size_(size), ours_(ours) {
    cuda().check(cuda().ctx_get_current(&context_), "cuCtxGetCurrent");
  }

  ~NcclCollectives() override { abort({}); }

  // Until the peers are there, in a thread, so that `look` can end the wait.
  //
  // The communicator blocks: one that does not hands every group to a new thread of NCCL's (since 2.23), which takes
  // longer than all the rest of a call.
  void connect(const UniqueId& id, const std::function<void()>& look) {
    using Joined = std::pair<Comm, Result>;
    const auto join = [&api = api_, context = context_, id, size = size_, rank = rank_] {
      cuda().check(cuda().ctx_push_current(context), "cuCtxPushCurrent");
      Config config;
      config.version = static_cast<uint32_t>(api.version);
      Comm made = nullptr;
      const Result result = api.comm_init_rank_config(&made, size, id, rank, &config);
      return Joined(made, result);
    };
    const auto discard = [&api = api_](Joined joined) {
      if (joined.first != nullptr) api.comm_abort(joined.first);
    };
    const auto [made, result] = a2a::in_background<Joined>(join, discard, look);
    std::unique_lock lock(mutex_);
    comm_ = made;
    settle(result, look, "ncclCommInitRankConfig", lock);
  }

  void check(const Batch& batch) const override {
    const Means means = means_of(batch.signature.op);
    if (means == Means::alltoall)
      require_packed(batch.sends, "alltoall sends"), require_packed(batch.recvs, "alltoall receives");
    if (means == Means::allgather) require_packed(batch.recvs, "allgather receives");
  }

  std::shared_ptr<void> enqueue(const Batch& batch, Stream stream) override {
    std::unique_lock lock(mutex_);
    if (comm_ == nullptr) throw Error(Code::aborted, "the NCCL communicator was let go");
    if (batch.sends.empty() && batch.recvs.empty()) return nullptr;
    const Means means = means_of(batch.signature.op);
    if (means == Means::group) {
      const bool hides_own = own_is_hidden(batch);
      if (!hides_own) copy_own(batch, stream);
      if (size_ > 1) group(batch, stream, hides_own, lock);
    } else if (means == Means::alltoall) {
      const Result result = api_.alltoall(batch.sends[0].data, batch.recvs[0].data, batch.sends[0].bytes, Type::uint8,
                                          comm_, stream.handle);
      settle(result, looking(batch.deadline), "ncclAlltoAll", lock);
    } else {
      const Result result = api_.allgather(batch.sends[0].data, batch.recvs[0].data, batch.sends[0].bytes, Type::uint8,
                                           comm_, stream.handle);
      settle(result, looking(batch.deadline), "ncclAllGather", lock);
    }
    return nullptr;
  }

  void capturing() override { captured_ = true; }

  std::optional<std::string> failure() override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || comm_ == nullptr) return std::nullopt;
    Result state = Result::success;
    const Result asked = api_.comm_get_async_error(comm_, &state);
    if (asked != Result::success) state = asked;
    if (state == Result::success || state == Result::in_progress) return std::nullopt;
    return "NCCL reports " + api_.describe(state, comm_);
  }

  // A thread that is in a call of NCCL soon leaves it, unless that waits for a peer. Then it is told to leave, by a
  // call that frees nothing, where there is one; and else the communicator is ended under it.
  void abort(std::span<const Stream>) noexcept override {
    std::unique_lock lock(mutex_, std::defer_lock);
    const auto wait = [&lock](int milliseconds) {
      for (; milliseconds > 0 && !lock.try_lock(); --milliseconds) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    };
    wait(100);
    Comm comm = comm_.exchange(nullptr);
    if (comm == nullptr) return;
    const bool revoke = api_.comm_revoke != nullptr && (!ours_ || !lock.owns_lock());
    if (revoke) api_.comm_revoke(comm, 0);
    if (!ours_) return;
    if (!lock.owns_lock()) wait(400);
    if (captured_) {
      in_background([&api = api_, comm] { api.comm_abort(comm); });
    } else {
      api_.comm_abort(comm);
    }
  }

  void close() override {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return;
    if (ours_ && captured_) {
      in_background([&api = api_, comm = comm_.exchange(nullptr)] {
        finalize(api, comm) == Result::success ? api.comm_destroy(comm) : api.comm_abort(comm);
      });
    } else if (ours_) {
      const auto call = [&api = api_, comm = comm_.load(), context = context_] {
        cuda().ctx_push_current(context);
        return finalize(api, comm);
      };
      const auto look = looking(Deadline::after_seconds(30));
      api_.check(a2a::in_background<Result>(call, [](Result) {}, look), comm_, "ncclCommFinalize");
      api_.check(api_.comm_destroy(comm_), nullptr, "ncclCommDestroy");
    }
    comm_ = nullptr;
  }

 private:
  // NCCL gives up a communicator, and returns, when the last graph with one of its operations is destroyed. The program
  // may keep one for ever, so nobody waits for that. Without a thread the communicator stays.
  template <class Call>
  void in_background(Call call) noexcept {
    try {
      std::thread([call, context = context_] {
        cuda().ctx_push_current(context);  // NCCL would come to the first device, and have the driver set that up
        call();
      }).detach();
    } catch (const std::system_error&) {
    }
  }

  static Result finalize(const Api& api, Comm comm) {
    Result state = api.comm_finalize(comm);
    while (state == Result::in_progress) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      const Result asked = api.comm_get_async_error(comm, &state);
      if (asked != Result::success) return asked;
    }
    return state;
  }

  Means means_of(Op op) const {
    if (op == Op::allgather) return Means::allgather;
    return op == Op::alltoall && api_.alltoall != nullptr ? Means::alltoall : Means::group;
  }

  // One run per peer, all of one size, one behind the other in the order of ranks; or nothing at all.
  void require_packed(Runs runs, const char* who) const {
    if (runs.empty()) return;
    bool packed = runs.size() == static_cast<size_t>(size_);
    for (size_t i = 0; packed && i < runs.size(); ++i) {
      packed = runs[i].peer == static_cast<Rank>(i) && runs[i].bytes == runs[0].bytes &&
               runs[i].data == runs[0].data + i * runs[0].bytes;
    }
    if (!packed) {
      throw Error(Code::invalid_argument, std::string(who) + " one part per rank, all of one size and packed");
    }
  }

  // Whether NCCL moves this rank's own part while it moves another one that is no shorter. A copy of its own costs a
  // launch more, before all others, but NCCL gives a part few of the device's multiprocessors.
  bool own_is_hidden(const Batch& batch) const {
    size_t own = 0, longest = 0;
    for (Runs rest : {Runs(batch.sends), Runs(batch.recvs)}) {
      while (!rest.empty()) {
        const Rank peer = rest[0].peer;
        size_t bytes = 0;
        for (const Run& run : take_runs(rest, peer)) bytes += run.bytes;
        size_t& most = peer == rank_ ? own : longest;
        most = std::max(most, bytes);
      }
    }
    return own <= longest;
  }

  void copy_own(const Batch& batch, Stream stream) {
    const CudaDriver& driver = cuda();
    const Runs from = runs_with(batch.sends, rank_), to = runs_with(batch.recvs, rank_);
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i].data == to[i].data) continue;
      driver.check(driver.memcpy_async(reinterpret_cast<CuPointer>(to[i].data),
                                       reinterpret_cast<CuPointer>(from[i].data), to[i].bytes, stream.handle),
                   "cuMemcpyAsync");
    }
  }

  void group(const Batch& batch, Stream stream, bool with_own, std::unique_lock<std::mutex>& lock) {
    api_.check(api_.group_start(), comm_, "ncclGroupStart");
    Result first = Result::success;  // an error must not leave the group open
    const char* call = "ncclGroupEnd";
    const auto note = [&](Result result, const char* name) {
      if (first == Result::success && result != Result::success && result != Result::in_progress)
        first = result, call = name;
    };
    Rotation rotation(batch.sends, batch.recvs, rank_, size_);
    for (int step = 0; step < size_ && first == Result::success; ++step) {
      const auto [sends, recvs] = rotation.next();
      if (step == 0 && !with_own) continue;
      for (const Run& run : sends) {
        note(api_.send(run.data, run.bytes, Type::uint8, run.peer, comm_, stream.handle), "ncclSend");
      }
      for (const Run& run : recvs) {
        note(api_.recv(run.data, run.bytes, Type::uint8, run.peer, comm_, stream.handle), "ncclRecv");
      }
    }
    const Result end = api_.group_end();
    api_.check(first, comm_, call);
    settle(end, looking(batch.deadline), "ncclGroupEnd", lock);
  }

  static std::function<void()> looking(Deadline deadline) {
    return [deadline] {
      SignalWatch::look();
      if (deadline.passed()) throw Error(Code::timeout, "timed out inside NCCL");
    };
  }

  // Where a communicator does not block (one of the program's, or NCCL_COMM_BLOCKING=0), a call may go on after it has
  // returned, and nothing may be enqueued behind it before its end.
  void settle(Result result, const std::function<void()>& look, const char* call, std::unique_lock<std::mutex>& lock) {
    using Clock = Deadline::Clock;
    api_.check(result, comm_, call);
    if (result != Result::in_progress) return;
    // NCCL's thread usually takes less time than it takes to fall asleep and wake up.
    const auto patience = Clock::now() + std::chrono::microseconds(200);
    while (result == Result::in_progress) {
      lock.unlock();
      look();
      if (Clock::now() < patience) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
      lock.lock();
      if (comm_ == nullptr) throw Error(Code::aborted, std::string(call) + ": aborted");
      api_.check(api_.comm_get_async_error(comm_, &result), comm_, "ncclCommGetAsyncError");
      api_.check(result, comm_, call);
    }
  }

  const Api& api_;
  std::mutex mutex_;        // held while NCCL is called
  std::atomic<Comm> comm_;  // nullptr once let go
  CuContext context_ = nullptr;
  const Rank rank_;
  const int size_;
  const bool ours_;
  std::atomic<bool> captured_{false};  // a graph may have its operations
};

}  // namespace

std::unique_ptr<device::Collectives> join_nccl(const UniqueId& id, const device::Joining& joining) {
  auto made = std::make_unique<NcclCollectives>(nullptr, joining.rank, joining.size, true);
  made->connect(id, joining.look);
  return made;
}

std::unique_ptr<device::Collectives> adopt_nccl(Comm comm, Rank rank, int size) {
  return std::make_unique<NcclCollectives>(comm, rank, size, false);
}

}  // namespace a2a::nccl
