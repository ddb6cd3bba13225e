#include "transport/hccl/hccl_collectives.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "transport/hccl/ascend_device.h"
#include "transport/hccl/hccl_reduction.h"

namespace a2a::hccl {
namespace {

using Runs = std::span<const Run>;

constexpr uint64_t kMostElements = 0x7FFFFFFFF;  // the largest count of HcclAlltoAllV

// The elements of HCCL's calls. An exchange may use any type of the right size, a reduction needs the dtype's own.
struct Unit {
  Type type = Type::int8;
  size_t bytes = 1;

  static Unit of(const Signature& signature) {
    if (signature.fold != Fold::none) {
      const Reduction reduction = reduction_of(signature.fold, signature.dtype);
      return {reduction.type, reduction.bytes};
    }
    switch (signature.dtype.bytes()) {
      case 2:
        return {Type::int16, 2};
      case 4:
        return {Type::int32, 4};
      case 8:
      case 16:
        return {Type::int64, 8};
      default:
        return {Type::int8, 1};
    }
  }
};

// The HCCL call that runs an operation. All ranks choose alike, because all know the operation.
enum class Means {
  alltoallv,
  alltoall,
  allgather,
  batch,   // HcclBatchSendRecv
  gather,  // the same, and this rank's part may be in place
  allreduce,
  reduce_scatter,
  reduce,
  broadcast,
  scatter,
};

Means means_of(Op op) {
  switch (op) {
    case Op::alltoall:
      return Means::alltoall;
    case Op::allgather:
      return Means::allgather;
    case Op::alltoall_list:   // a buffer per peer
    case Op::global_scatter:  // several segments per peer
    case Op::global_gather:
      return Means::batch;
    case Op::gather:
    case Op::allgatherv:
      return Means::gather;
    case Op::allreduce:
      return Means::allreduce;
    case Op::reduce_scatter:
      return Means::reduce_scatter;
    case Op::reduce:
      return Means::reduce;
    case Op::broadcast:
      return Means::broadcast;
    case Op::scatter:
      return Means::scatter;
    default:
      return Means::alltoallv;
  }
}

std::byte* lowest(Runs runs) { return runs.empty() ? nullptr : std::ranges::min(runs, {}, &Run::data).data; }

size_t total(Runs runs) {
  size_t bytes = 0;
  for (const Run& run : runs) bytes += run.bytes;
  return bytes;
}

// Whether there is one run per peer, all of one size, adjacent in the order of ranks; or no run at all.
bool packed_equally(Runs runs, int size) {
  if (runs.empty()) return true;
  if (runs.size() != static_cast<size_t>(size)) return false;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].peer != static_cast<Rank>(i) || runs[i].bytes != runs[0].bytes ||
        runs[i].data != runs[0].data + i * runs[0].bytes) {
      return false;
    }
  }
  return true;
}

// One side of HcclAlltoAllV: a base address, with counts and displacements from it, in units.
struct Side {
  std::byte* base;
  std::vector<uint64_t> counts, displs;

  Side(Runs runs, int size, size_t unit, std::byte* nothing)
      : base(runs.empty() ? nothing : lowest(runs)), counts(static_cast<size_t>(size)), displs(counts) {
    for (const Run& run : runs) {
      counts[static_cast<size_t>(run.peer)] = run.bytes / unit;
      displs[static_cast<size_t>(run.peer)] = static_cast<size_t>(run.data - base) / unit;
    }
  }
};

// The items of the calls of HcclBatchSendRecv. A call takes at most one send and one receive for each pair of ranks, so
// the k-th call has the k-th segments of all pairs. A rank without any makes no call.
using Calls = std::vector<std::vector<Item>>;

void add(Calls& calls, Direction direction, Runs runs, Unit unit, Runs in_place) {
  size_t k = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const Run& run = runs[i];
    if (std::ranges::find(in_place, run) != in_place.end()) continue;
    k = i > 0 && runs[i - 1].peer == run.peer ? k + 1 : 0;
    if (calls.size() <= k) calls.emplace_back();
    calls[k].push_back({direction, run.data, run.bytes / unit.bytes, unit.type, static_cast<uint32_t>(run.peer)});
  }
}

class HcclCollectives final : public device::Collectives {
 public:
  HcclCollectives(device::Device& device, Comm comm, Rank rank, int size, Ownership ownership)
      : api_(api()), index_(device.index()), comm_(comm), rank_(rank), size_(size), ownership_(ownership) {
    constexpr int kHugeFirst = 0;
    const int error = api_.malloc(reinterpret_cast<void**>(&nothing_), 2 * kNothing, kHugeFirst);
    if (error == 0) return;
    destroy();
    api_.check_acl(error, "aclrtMalloc");
  }

  ~HcclCollectives() override {
    abort({});
    try {
      const AscendDevice device(index_);
      const device::Device::Current current(device);
      api_.free(nothing_);
    } catch (const Error&) {
      // The device is gone, and its memory with it.
    }
  }

  void check(const Batch& batch) const override {
    const Unit unit = Unit::of(batch.signature);
    const Means means = means_of(batch.signature.op);
    check_runs(batch.sends, unit, "sent");
    check_runs(batch.recvs, unit, "received");
    switch (means) {
      case Means::batch:
      case Means::gather:
        if (api_.batch_send_recv == nullptr) api_.hccl.missing("HcclBatchSendRecv");
        break;
      case Means::alltoallv:
        require_one_per_peer(batch.sends);
        require_one_per_peer(batch.recvs);
        break;
      case Means::alltoall:
        require(packed_equally(batch.sends, size_) && packed_equally(batch.recvs, size_),
                "alltoall has one part per rank, all of one size and packed");
        break;
      case Means::allgather:
        require(packed_equally(batch.recvs, size_), "allgather receives one part per rank, packed");
        break;
      default:
        break;
    }
    const bool in_place = !batch.sends.empty() && lowest(batch.sends) == lowest(batch.recvs);
    const bool exchanges = means == Means::alltoallv || means == Means::alltoall || means == Means::batch;
    require(!in_place || !exchanges, "HCCL does not exchange in place: the send and the receive buffer are the same");
  }

  std::shared_ptr<void> enqueue(const Batch& batch, Stream stream) override {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) throw Error(Code::aborted, "the HCCL communicator was let go");
    const Unit unit = Unit::of(batch.signature);
    const Means means = means_of(batch.signature.op);
    switch (means) {
      case Means::alltoallv:
        return alltoallv(batch, unit, stream);
      case Means::alltoall:
        return alltoall(batch, unit, stream), nullptr;
      case Means::allgather:
        return allgather(batch, unit, stream), nullptr;
      case Means::batch:
      case Means::gather:
        return send_recv(batch, unit, stream);
      case Means::broadcast:
      case Means::scatter:
        return from_root(batch, unit, stream), nullptr;
      default:
        return reduce(batch, means, stream), nullptr;
    }
  }

  std::optional<std::string> failure() override {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || comm_ == nullptr || api_.get_comm_async_error == nullptr) return std::nullopt;
    Result result = Result::success;
    api_.check(api_.get_comm_async_error(comm_, &result), "HcclGetCommAsyncError");
    if (result == Result::success) return std::nullopt;
    return "HCCL reports " + api_.describe(result);
  }

  // Ends enqueued operations by aborting their streams; HCCL has no other call for it. Where that call is missing, only
  // the communicator is destroyed.
  void abort(std::span<const Stream> busy) noexcept override {
    constexpr int32_t kPatience = 1000;  // milliseconds until running operations no longer use their memory
    try {
      const AscendDevice device(index_);
      const device::Device::Current current(device);
      for (const Stream stream : busy) {
        if (api_.stream_abort != nullptr && stream.handle != nullptr) api_.stream_abort(stream.handle);
      }
      if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) destroy();  // a call that hangs in HCCL holds it
      for (const Stream stream : busy) {
        if (api_.synchronize_stream_with_timeout != nullptr && stream.handle != nullptr) {
          api_.synchronize_stream_with_timeout(stream.handle, kPatience);
        }
      }
    } catch (const Error&) {
      // The device is gone, and its work with it.
    }
  }

  void close() override {
    const std::lock_guard lock(mutex_);
    api_.check(destroy(), "HcclCommDestroy");
  }

 private:
  static constexpr size_t kNothing = 64;

  // Releases the communicator, and destroys it if it is ours. No effect when that was done before.
  Result destroy() noexcept {
    Comm const comm = std::exchange(comm_, nullptr);
    return comm == nullptr || ownership_ == Ownership::callers ? Result::success : api_.comm_destroy(comm);
  }

  static void require(bool holds, const char* rule) {
    if (!holds) throw Error(Code::invalid_argument, rule);
  }

  void check_runs(Runs runs, Unit unit, const char* verb) const {
    for (const Run& run : runs) {
      const std::string what = std::to_string(run.bytes) + " bytes " + verb +
                               (verb[0] == 's' ? " to rank " : " from rank ") + std::to_string(run.peer);
      if (reinterpret_cast<uintptr_t>(run.data) % unit.bytes != 0 || run.bytes % unit.bytes != 0) {
        throw Error(Code::invalid_argument, what + " are not aligned to elements of " + std::to_string(unit.bytes) +
                                                " bytes, which HCCL wants");
      }
      if (run.bytes / unit.bytes > kMostElements) {
        throw Error(Code::unsupported, what + " are more than the " + std::to_string(kMostElements) + " elements of " +
                                           std::to_string(unit.bytes) + " bytes that HCCL takes at once");
      }
      if (AscendDevice::of(run.data) != index_) {
        throw Error(Code::invalid_argument, what + " are not in the memory of npu:" + std::to_string(index_));
      }
    }
  }

  static void require_one_per_peer(Runs runs) {
    const auto again = std::ranges::adjacent_find(runs, {}, &Run::peer);
    require(again == runs.end(), "alltoallv has one segment per peer; several are those of global_scatter or a list");
  }

  std::shared_ptr<void> alltoallv(const Batch& batch, Unit unit, Stream stream) {
    auto sides = std::make_shared<std::pair<Side, Side>>(Side(batch.sends, size_, unit.bytes, nothing_),
                                                         Side(batch.recvs, size_, unit.bytes, nothing_ + kNothing));
    auto& [send, recv] = *sides;
    api_.check(api_.alltoallv(send.base, send.counts.data(), send.displs.data(), unit.type, recv.base,
                              recv.counts.data(), recv.displs.data(), unit.type, comm_, stream.handle),
               "HcclAlltoAllV");
    return sides;  // some versions read the counts when the operation runs
  }

  void alltoall(const Batch& batch, Unit unit, Stream stream) {
    const uint64_t count = total(batch.sends) / unit.bytes / static_cast<size_t>(size_);
    std::byte* send = batch.sends.empty() ? nothing_ : lowest(batch.sends);
    std::byte* recv = batch.recvs.empty() ? nothing_ + kNothing : lowest(batch.recvs);
    api_.check(api_.alltoall(send, count, unit.type, recv, count, unit.type, comm_, stream.handle), "HcclAlltoAll");
  }

  void allgather(const Batch& batch, Unit unit, Stream stream) {
    if (batch.recvs.empty()) return;  // on every rank alike
    api_.check(api_.allgather(lowest(batch.sends), lowest(batch.recvs), batch.recvs[0].bytes / unit.bytes, unit.type,
                              comm_, stream.handle),
               "HcclAllGather");
  }

  std::shared_ptr<void> send_recv(const Batch& batch, Unit unit, Stream stream) {
    auto calls = std::make_shared<Calls>();
    add(*calls, Direction::send, batch.sends, unit, runs_with(batch.recvs, rank_));
    add(*calls, Direction::recv, batch.recvs, unit, runs_with(batch.sends, rank_));
    for (auto& items : *calls) {
      api_.check(api_.batch_send_recv(items.data(), static_cast<uint32_t>(items.size()), comm_, stream.handle),
                 "HcclBatchSendRecv");
    }
    return calls;
  }

  void from_root(const Batch& batch, Unit unit, Stream stream) {
    if (batch.sends.empty() && batch.recvs.empty()) return;  // on every rank alike
    if (batch.signature.op == Op::scatter) {
      const Run& part = batch.recvs[0];
      std::byte* send = batch.sends.empty() ? nothing_ : lowest(batch.sends);
      api_.check(api_.scatter(send, part.data, part.bytes / unit.bytes, unit.type, static_cast<uint32_t>(part.peer),
                              comm_, stream.handle),
                 "HcclScatter");
      return;
    }
    const bool is_root = batch.recvs.empty();
    const Run& all = is_root ? batch.sends[0] : batch.recvs[0];
    const auto root = static_cast<uint32_t>(is_root ? rank_ : all.peer);
    api_.check(api_.broadcast(all.data, all.bytes / unit.bytes, unit.type, root, comm_, stream.handle),
               "HcclBroadcast");
  }

  void reduce(const Batch& batch, Means means, Stream stream) {
    if (batch.sends.empty()) return;  // on every rank alike
    const auto [type, unit, op] = reduction_of(batch.signature.fold, batch.signature.dtype);
    std::byte* const send = batch.sends[0].data;
    std::byte* const recv = batch.recvs.empty() ? nullptr : batch.recvs[0].data;
    const size_t count = batch.sends[0].bytes / unit;
    if (means == Means::allreduce) {
      api_.check(api_.allreduce(send, recv, count, type, op, comm_, stream.handle), "HcclAllReduce");
    } else if (means == Means::reduce_scatter && packed_equally(batch.sends, size_)) {
      api_.check(api_.reduce_scatter(send, recv, count, type, op, comm_, stream.handle), "HcclReduceScatter");
    } else {
      // A reduction to each peer. Not all products have HcclReduceScatterV. HcclReduce needs an output on every rank;
      // the ranks that get none pass their input, which is as long.
      for (const Run& run : batch.sends) {
        std::byte* const output = run.peer == rank_ ? recv : run.data;
        api_.check(api_.reduce(run.data, output, run.bytes / unit, type, op, static_cast<uint32_t>(run.peer), comm_,
                               stream.handle),
                   "HcclReduce");
      }
    }
  }

  const Api& api_;
  const int index_;
  std::mutex mutex_;  // held during calls of HCCL
  Comm comm_;         // nullptr after its release
  const Rank rank_;
  const int size_;
  const Ownership ownership_;
  std::byte* nothing_ = nullptr;  // an empty buffer: 64 bytes to send from, 64 to receive into
};

}  // namespace

std::unique_ptr<device::Collectives> new_collectives(device::Device& device, Comm comm, Rank rank, int size,
                                                     Ownership ownership) {
  return std::make_unique<HcclCollectives>(device, comm, rank, size, ownership);
}

}  // namespace a2a::hccl
