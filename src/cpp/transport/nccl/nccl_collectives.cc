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
#include "transport/nccl/nccl_reduction.h"

namespace a2a::nccl {
namespace {

using Runs = std::span<const Run>;

constexpr int kFirstWithFloat8 = 22400;

// The NCCL call that runs an operation. All ranks choose alike, because all know the operation, have the same version,
// and give the same counts to a reduce_scatter. An operation that is no collective of NCCL is one group of sends and
// receives, or of reductions to one rank each.
enum class Means { exchange, alltoall, allgather, allreduce, reduce_scatter, reduce, broadcast };

class NcclCollectives final : public device::Collectives {
 public:
  NcclCollectives(Comm comm, Rank rank, int size, bool ours)
      : api_(api()), comm_(comm), rank_(rank), size_(size), ours_(ours) {
    cuda().check(cuda().ctx_get_current(&context_), "cuCtxGetCurrent");
    float8_ = api_.version >= kFirstWithFloat8 && capability() >= 9;
  }

  ~NcclCollectives() override { abort({}); }

  // Joins the communicator in a thread, so that `look` can end the wait for the peers.
  //
  // The communicator blocks. A communicator that does not block starts a thread for every group (since 2.23), which
  // takes longer than the rest of a call.
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
    const Means means = means_of(batch);
    if (means == Means::alltoall)
      require_packed(batch.sends, "alltoall sends"), require_packed(batch.recvs, "alltoall receives");
    if (means == Means::allgather) require_packed(batch.recvs, "allgather receives");
    if (batch.signature.fold != Fold::none) require_elements(batch);
  }

  std::shared_ptr<void> enqueue(const Batch& batch, Stream stream) override {
    std::unique_lock lock(mutex_);
    if (comm_ == nullptr) throw Error(Code::aborted, "the NCCL communicator was let go");
    if (batch.sends.empty() && batch.recvs.empty()) return nullptr;
    const auto made = [&](Result result, const char* call) { settle(result, looking(batch.deadline), call, lock); };
    const Run from = batch.sends.empty() ? Run{} : batch.sends[0], to = batch.recvs.empty() ? Run{} : batch.recvs[0];
    void* const on = stream.handle;
    switch (means_of(batch)) {
      case Means::exchange:
        exchange(batch, stream, lock);
        break;
      case Means::alltoall:
        made(api_.alltoall(from.data, to.data, from.bytes, Type::uint8, comm_, on), "ncclAlltoAll");
        break;
      case Means::allgather:
        made(api_.allgather(from.data, to.data, from.bytes, Type::uint8, comm_, on), "ncclAllGather");
        break;
      case Means::broadcast: {
        const Run all = batch.recvs.empty() ? Run{rank_, from.data, from.bytes} : to;
        made(api_.broadcast(all.data, all.data, all.bytes, Type::uint8, all.peer, comm_, on), "ncclBroadcast");
        break;
      }
      case Means::allreduce: {
        const auto [type, unit, op] = reduction(batch);
        made(api_.allreduce(from.data, to.data, to.bytes / unit, type, op, comm_, on), "ncclAllReduce");
        break;
      }
      case Means::reduce_scatter: {
        const auto [type, unit, op] = reduction(batch);
        made(api_.reduce_scatter(from.data, to.data, to.bytes / unit, type, op, comm_, on), "ncclReduceScatter");
        break;
      }
      case Means::reduce:
        reduce(batch, stream, lock);
        break;
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

  // Waits for a thread that is in a call of NCCL. If the call does not return, because it waits for a peer, the
  // communicator is revoked, which frees nothing, where NCCL can do that. Otherwise it is aborted under that call.
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
  // Runs the call in a thread of its own. NCCL destroys a communicator, and returns, when the last graph with one of
  // its operations is destroyed. The program may keep such a graph for ever, so no caller waits for that. If no thread
  // can be made, the communicator is leaked.
  template <class Call>
  void in_background(Call call) noexcept {
    try {
      std::thread([call, context = context_] {
        cuda().ctx_push_current(context);  // otherwise NCCL would use the first device, and make the driver set it up
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

  // Returns the major compute capability of the current device.
  static int capability() {
    constexpr int kMajor = 75;
    int device = 0, major = 0;
    cuda().check(cuda().ctx_get_device(&device), "cuCtxGetDevice");
    cuda().check(cuda().device_get_attribute(&major, kMajor, device), "cuDeviceGetAttribute");
    return major;
  }

  Means means_of(const Batch& batch) const {
    switch (batch.signature.op) {
      case Op::alltoall:
        return api_.alltoall != nullptr ? Means::alltoall : Means::exchange;
      case Op::allgather:
        return Means::allgather;
      case Op::allreduce:
        return Means::allreduce;
      case Op::reduce_scatter:
        return packed(batch.sends) ? Means::reduce_scatter : Means::reduce;
      case Op::reduce:
        return Means::reduce;
      case Op::broadcast:
        return Means::broadcast;
      default:
        return Means::exchange;
    }
  }

  // Whether there is one run per peer, all of one size, adjacent in the order of ranks.
  bool packed(Runs runs) const {
    if (runs.size() != static_cast<size_t>(size_)) return false;
    for (size_t i = 0; i < runs.size(); ++i) {
      if (runs[i].peer != static_cast<Rank>(i) || runs[i].bytes != runs[0].bytes) return false;
      if (runs[i].data != runs[0].data + i * runs[0].bytes) return false;
    }
    return true;
  }
  void require_packed(Runs runs, const char* who) const {
    if (runs.empty() || packed(runs)) return;
    throw Error(Code::invalid_argument, std::string(who) + " one part per rank, all of one size and packed");
  }

  Reduction reduction(const Batch& batch) const {
    Reduction reduction = reduction_of(batch.signature.fold, batch.signature.dtype, float8_);
    // NCCL has no average of float8 for a single rank.
    if (size_ == 1 && reduction.op == ReduceOp::avg) reduction.op = ReduceOp::sum;
    return reduction;
  }
  void require_elements(const Batch& batch) const {
    const size_t unit = reduction(batch).bytes;
    for (const Runs runs : {Runs(batch.sends), Runs(batch.recvs)}) {
      for (const Run& run : runs) {
        if (reinterpret_cast<uintptr_t>(run.data) % unit == 0 && run.bytes % unit == 0) continue;
        throw Error(Code::invalid_argument, std::to_string(run.bytes) + " bytes are not aligned to elements of " +
                                                std::to_string(unit) + " bytes, which NCCL wants");
      }
    }
  }

  // Whether NCCL moves this rank's own part along with another one that is no shorter. A separate copy costs one more
  // launch, before all others. In the group, NCCL gives a part only a few multiprocessors.
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

  // Makes calls of NCCL as one group. Each result is passed to `note`, which returns whether to continue.
  template <class Calls>
  void group(const Batch& batch, std::unique_lock<std::mutex>& lock, Calls&& calls) {
    api_.check(api_.group_start(), comm_, "ncclGroupStart");
    Result first = Result::success;  // an error must not leave the group open
    const char* call = "ncclGroupEnd";
    calls([&](Result result, const char* name) {
      if (result == Result::success || result == Result::in_progress) return true;
      first = result, call = name;
      return false;
    });
    const Result end = api_.group_end();
    api_.check(first, comm_, call);
    settle(end, looking(batch.deadline), "ncclGroupEnd", lock);
  }

  void exchange(const Batch& batch, Stream stream, std::unique_lock<std::mutex>& lock) {
    const bool with_own = own_is_hidden(batch);
    if (!with_own) copy_own(batch, stream);
    if (size_ == 1) return;
    group(batch, lock, [&](auto&& note) {
      Rotation rotation(batch.sends, batch.recvs, rank_, size_);
      for (int step = 0; step < size_; ++step) {
        const auto [sends, recvs] = rotation.next();
        if (step == 0 && !with_own) continue;
        for (const Run& run : sends) {
          if (!note(api_.send(run.data, run.bytes, Type::uint8, run.peer, comm_, stream.handle), "ncclSend")) return;
        }
        for (const Run& run : recvs) {
          if (!note(api_.recv(run.data, run.bytes, Type::uint8, run.peer, comm_, stream.handle), "ncclRecv")) return;
        }
      }
    });
  }

  // Makes a reduction to each peer.
  void reduce(const Batch& batch, Stream stream, std::unique_lock<std::mutex>& lock) {
    const auto [type, unit, op] = reduction(batch);
    std::byte* const output = batch.recvs.empty() ? nullptr : batch.recvs[0].data;
    group(batch, lock, [&, type = type, unit = unit, op = op](auto&& note) {
      for (const Run& run : batch.sends) {
        std::byte* const to = run.peer == rank_ ? output : nullptr;
        const size_t count = run.bytes / unit;
        if (!note(api_.reduce(run.data, to, count, type, op, run.peer, comm_, stream.handle), "ncclReduce")) return;
      }
    });
  }

  static std::function<void()> looking(Deadline deadline) {
    return [deadline] {
      SignalWatch::look();
      if (deadline.passed()) throw Error(Code::timeout, "timed out inside NCCL");
    };
  }

  // Waits for the end of a call on a communicator that does not block (one of the program's, or NCCL_COMM_BLOCKING=0).
  // Such a call may continue after it has returned, and nothing may be enqueued behind it before its end.
  void settle(Result result, const std::function<void()>& look, const char* call, std::unique_lock<std::mutex>& lock) {
    using Clock = Deadline::Clock;
    api_.check(result, comm_, call);
    if (result != Result::in_progress) return;
    // NCCL's thread usually finishes before this thread could fall asleep and wake up.
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
  std::mutex mutex_;        // held during calls of NCCL
  std::atomic<Comm> comm_;  // nullptr after its release
  CuContext context_ = nullptr;
  const Rank rank_;
  const int size_;
  const bool ours_;
  bool float8_ = false;                // float8 can be folded
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
