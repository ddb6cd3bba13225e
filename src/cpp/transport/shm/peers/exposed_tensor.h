// Tensors that ranks expose to each other (Communicator::allgather_views): their description, and how an owner learns
// that nobody views them any more.
//
// Each rank has a word in its own segment that says whether it views the tensors of this operation. It sets the word
// before it publishes the line with the description, which names the word. So an owner that receives a peer's
// description knows the word that says whether the peer still views the owner's tensor. Only the owner of a word writes
// it. The word of a rank that died stays set; such a rank counts as gone.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/views.h"
#include "transport/shm/peers/local_peer.h"
#include "transport/shm/peers/process_memory.h"

namespace a2a::shm {

constexpr size_t kMaxDims = 64;

// The message to each peer. It fits into a line.
struct TensorDescription {
  uint64_t where;  // offset of the tensor in the segment
  uint64_t bytes;
  uint64_t record;  // offset of the record
  uint64_t views;   // the word while the rank views the tensors; 0: no description has come
};
static_assert(sizeof(TensorDescription) <= inline_bytes(kMaxRanks));

// In the segment of its rank. A peer reads the shape while it views the tensor, and the word at any time.
struct ViewingRecord {
  Viewing<StdAtomics> word;
  uint64_t dims;
  int64_t shape[kMaxDims];
};

// One rank's part in one operation: its own tensor, which peers may view, and its views of theirs.
class ExposedTensor final : public Exposure {
 public:
  // Throws Error(invalid_argument) when no allocated block of this process's segment holds the bytes.
  ExposedTensor(ProcessMemory& memory, std::shared_ptr<const LocalGroup> local_group, const std::byte* data,
                size_t bytes, DType dtype, std::span<const int64_t> shape);
  ~ExposedTensor() override;
  ExposedTensor(const ExposedTensor&) = delete;
  ExposedTensor& operator=(const ExposedTensor&) = delete;

  void describe(Batch& batch) override;
  void started(std::shared_ptr<Work> work) override { work_ = std::move(work); }
  const std::shared_ptr<Work>& work() const override { return work_; }
  int size() const override { return static_cast<int>(descriptions_.size()); }
  View view(Rank rank) const override;
  bool viewing() const override { return viewing_.load(std::memory_order_acquire); }
  void end_viewing() noexcept override;
  bool wait_returned(Deadline deadline) override;

  TensorDescription* descriptions() { return descriptions_.data(); }  // by rank
  // Whether a peer may still view this rank's tensor. Requires that the work is done.
  bool is_viewed(bool ask_kernel) const;
  // Whether the work is done and neither this rank nor a peer views anything.
  bool finished(bool ask_kernel) const;
  // Releases its memory in the segment. Requires finished().
  void release_memory() noexcept;

 private:
  bool is_viewed_by(Rank peer, bool ask_kernel) const;

  ProcessMemory& memory_;
  const std::shared_ptr<const LocalGroup> local_group_;
  const size_t item_bytes_;
  std::byte* block_ = nullptr;  // pinned; none where the tensor is empty
  ViewingRecord* record_;
  TensorDescription mine_{};
  std::vector<TensorDescription> descriptions_;  // by rank; zeroes where no description came
  std::shared_ptr<Work> work_;
  std::atomic<bool> viewing_{true}, released_{false};
};

// The exposed tensors of a process that are still viewed, or whose exchange is in flight.
class ExposedTensors {
 public:
  explicit ExposedTensors(ProcessMemory& memory) : memory_(memory) {}

  void add(std::shared_ptr<ExposedTensor> tensor);
  // Releases the memory of the tensors that are finished. No thread does it: the functions that expose tensors, release
  // views, allocate shared memory or leave a communicator call this.
  void sweep() noexcept;

  ViewingRecord* take_record();
  void give_record(ViewingRecord* record) noexcept;
  uint64_t next_number() { return number_.fetch_add(1, std::memory_order_relaxed) + 1; }

 private:
  ProcessMemory& memory_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<ExposedTensor>> tensors_;
  std::vector<ViewingRecord*> free_;
  size_t records_ = 0;  // allocated so far
  Deadline::Clock::time_point last_asked_{};
  std::atomic<uint64_t> number_{0};
};

}  // namespace a2a::shm
