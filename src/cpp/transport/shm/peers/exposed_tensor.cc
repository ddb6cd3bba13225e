#include "transport/shm/peers/exposed_tensor.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>

#include "transport/shm/peers/shm_progress.h"
#include "transport/shm/protocol/protocol.h"

namespace a2a::shm {
namespace {

// Lives while a rank waits until its tensor is no longer viewed. The rank's progress polls it, too.
class ReturnWait final : public Active {
 public:
  ReturnWait(ShmProgress& progress, const ExposedTensor& tensor) : progress_(progress), tensor_(tensor) {
    std::lock_guard lock(progress_.mutex());
    progress_.enter(this);
  }
  ~ReturnWait() override {
    std::lock_guard lock(progress_.mutex());
    progress_.leave(this);
  }
  ReturnWait(const ReturnWait&) = delete;
  ReturnWait& operator=(const ReturnWait&) = delete;

  bool returned() const { return returned_; }

  bool advance() override {
    if (returned_ || tensor_.is_viewed(false)) return false;
    return returned_ = true;
  }
  void check(Deadline::Clock::time_point, bool ask_kernel) override { returned_ |= !tensor_.is_viewed(ask_kernel); }

 private:
  ShmProgress& progress_;
  const ExposedTensor& tensor_;
  bool returned_ = false;
};

// Fills in *view from a peer's description. Returns false when the peer wrote an impossible tensor.
bool describe(LocalPeer& peer, const TensorDescription& description, size_t item_bytes, View* view) {
  if (!peer.reach(description.where, description.bytes)) return false;
  const auto& record = *reinterpret_cast<const ViewingRecord*>(peer.base + description.record);
  const uint64_t dims = record.dims;
  if (dims > kMaxDims) return false;
  view->shape.assign(record.shape, record.shape + dims);
  size_t bytes = item_bytes;
  for (const int64_t entries : view->shape) {
    if (entries < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(entries), &bytes)) return false;
  }
  if (bytes != description.bytes) return false;
  view->data = peer.base + description.where;
  view->bytes = bytes;
  return true;
}

bool record_inside(LocalPeer& peer, const TensorDescription& description) {
  return description.record % alignof(ViewingRecord) == 0 && peer.reach(description.record, sizeof(ViewingRecord));
}

}  // namespace

ExposedTensor::ExposedTensor(ProcessMemory& memory, std::shared_ptr<const LocalGroup> local_group,
                             const std::byte* data, size_t bytes, DType dtype, std::span<const int64_t> shape)
    : memory_(memory),
      local_group_(std::move(local_group)),
      item_bytes_(dtype.bytes()),
      record_(memory.exposed_tensors().take_record()),
      descriptions_(local_group_->local_peers.size()) {
  if (bytes > 0 && (block_ = memory.arena().pin(data, bytes)) == nullptr) {
    memory.exposed_tensors().give_record(record_);
    throw Error(
        Code::invalid_argument,
        "the tensor does not lie in this rank's shared memory, so peers cannot look at it; make it with empty() "
        "of this process, or copy it into such a tensor");
  }
  record_->dims = shape.size();
  std::ranges::copy(shape, record_->shape);
  mine_ = {bytes > 0 ? memory.arena().offset(data) : 0, bytes,
           memory.arena().offset(reinterpret_cast<const std::byte*>(record_)), memory.exposed_tensors().next_number()};
  begin_viewing(record_->word, mine_.views);
}

ExposedTensor::~ExposedTensor() {
  end_viewing();
  release_memory();
}

void ExposedTensor::release_memory() noexcept {
  if (released_.exchange(true) || memory_.inherited()) return;
  if (block_ != nullptr) memory_.arena().unpin(block_);
  memory_.exposed_tensors().give_record(record_);
}

View ExposedTensor::view(Rank rank) const {
  if (!viewing()) throw Error(Code::invalid_argument, "the views were released");
  View view;
  if (rank == local_group_->rank) {
    view.shape.assign(record_->shape, record_->shape + record_->dims);
    view.bytes = mine_.bytes;
    view.data = memory_.arena().base() + mine_.where;
    return view;
  }
  const TensorDescription& description = descriptions_[static_cast<size_t>(rank)];
  LocalPeer& peer = *local_group_->local_peers[static_cast<size_t>(rank)];
  if (!record_inside(peer, description) || !shm::describe(peer, description, item_bytes_, &view)) {
    throw Error(Code::backend, "shared memory: rank " + std::to_string(rank) + " described no possible tensor");
  }
  return view;
}

// An allgather of the descriptions.
void ExposedTensor::describe(Batch& batch) {
  auto* const mine = reinterpret_cast<std::byte*>(&mine_);
  auto* const all = reinterpret_cast<std::byte*>(descriptions());
  for (Rank rank = 0; rank < size(); ++rank) {
    batch.sends.push_back({rank, mine, sizeof(TensorDescription)});
    batch.recvs.push_back(
        {rank, all + static_cast<size_t>(rank) * sizeof(TensorDescription), sizeof(TensorDescription)});
  }
  // The operation may fail here although peers have this rank's description. The last look gets the peers' descriptions
  // then, or the operation fails there as well.
  batch.last_look = true;
}

void ExposedTensor::end_viewing() noexcept {
  if (!viewing_.exchange(false) || memory_.inherited()) return;
  shm::end_viewing(record_->word);
  before_waking<StdAtomics>();
  for (const auto& peer : local_group_->local_peers) {
    if (peer != nullptr) wake(peer->sleeper());
  }
  memory_.exposed_tensors().sweep();
}

bool ExposedTensor::is_viewed_by(Rank rank, bool ask_kernel) const {
  const TensorDescription& description = descriptions_[static_cast<size_t>(rank)];
  if (rank == local_group_->rank || description.views == 0)
    return false;  // a rank whose description has not come views nothing
  LocalPeer& peer = *local_group_->local_peers[static_cast<size_t>(rank)];
  if (peer.lost.load(std::memory_order_relaxed)) return false;
  if (record_inside(peer, description)) {
    const auto& record = *reinterpret_cast<const ViewingRecord*>(peer.base + description.record);
    if (!is_viewing(record.word, description.views)) return false;
  }
  return !ask_kernel || !peer.gone();
}

bool ExposedTensor::is_viewed(bool ask_kernel) const {
  for (Rank rank = 0; rank < size(); ++rank) {
    if (is_viewed_by(rank, ask_kernel)) return true;
  }
  return false;
}

bool ExposedTensor::wait_returned(Deadline deadline) {
  memory_.refuse_if_inherited();
  ShmProgress& progress = *local_group_->progress;
  const ReturnWait here(progress, *this);
  return progress.wait([&] { return here.returned(); }, deadline);
}

bool ExposedTensor::finished(bool ask_kernel) const {
  if (viewing()) return false;
  try {
    if (work_ != nullptr && !work_->done()) return false;
  } catch (const std::exception&) {  // out of memory
    return false;
  }
  return !is_viewed(ask_kernel);
}

void ExposedTensors::add(std::shared_ptr<ExposedTensor> tensor) {
  std::lock_guard lock(mutex_);
  tensors_.push_back(std::move(tensor));
}

void ExposedTensors::sweep() noexcept try {
  constexpr auto kOften = std::chrono::milliseconds(10);
  if (memory_.inherited()) return;
  std::vector<std::shared_ptr<ExposedTensor>> tensors;
  bool ask_kernel = false;
  {
    std::lock_guard lock(mutex_);
    if (tensors_.empty()) return;
    tensors = tensors_;
    const auto now = Deadline::Clock::now();
    ask_kernel = now - last_asked_ >= kOften;
    if (ask_kernel) last_asked_ = now;
  }
  // Without the mutex: a look at an operation in flight advances all operations of its rank.
  std::erase_if(tensors, [&](const auto& tensor) { return !tensor->finished(ask_kernel); });
  for (const auto& tensor : tensors) tensor->release_memory();
  std::lock_guard lock(mutex_);
  std::erase_if(tensors_, [&](const auto& tensor) { return std::ranges::find(tensors, tensor) != tensors.end(); });
} catch (const std::exception&) {  // out of memory: the next sweep finds what is left
}

// Records are never deallocated: peers may read their words for as long as they live.
ViewingRecord* ExposedTensors::take_record() {
  constexpr size_t kRecordsAtOnce = 16;
  std::lock_guard lock(mutex_);
  if (free_.empty()) {
    std::byte* memory = memory_.arena().allocate(kRecordsAtOnce * sizeof(ViewingRecord));
    free_.reserve(records_ += kRecordsAtOnce);  // so that giving them back needs no memory
    for (size_t i = kRecordsAtOnce; i > 0; --i)
      free_.push_back(new (memory + (i - 1) * sizeof(ViewingRecord)) ViewingRecord{});
  }
  ViewingRecord* record = free_.back();
  free_.pop_back();
  return record;
}

void ExposedTensors::give_record(ViewingRecord* record) noexcept {
  std::lock_guard lock(mutex_);
  free_.push_back(record);
}

}  // namespace a2a::shm
