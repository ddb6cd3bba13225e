// Tensors that ranks show to each other (Communicator::allgather_views): what they say of them, and how an owner learns
// that nobody looks any more.
//
// Each rank has one word in its own segment, which says whether it looks at the tensors of this operation. It is set
// before the peers hear of it, in the same line as of the tensor, so an owner that hears of a tensor knows where to
// look whether its own one is still in use. No rank waits for that, and nobody but the word's owner writes it: a rank
// that dies leaves its word set, and is gone.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/views.h"
#include "transport/shm/peers/host.h"
#include "transport/shm/peers/neighbour.h"

namespace a2a::shm {

constexpr size_t kMaxDims = 64;

// What a rank tells each peer. It fits into a line.
struct Card {
  uint64_t where;  // offset of the tensor in the segment
  uint64_t bytes;
  uint64_t slot;   // offset of the slot
  uint64_t views;  // what the slot's word says while the rank looks at the tensors; 0: no card
};
static_assert(sizeof(Card) <= inline_bytes(kMaxRanks));

// In the segment of its rank. A peer reads the shape while it looks at the tensor, the word at any time.
struct Slot {
  Viewing<StdAtomics> word;
  uint64_t dims;
  int64_t shape[kMaxDims];
};

// One rank's part in one operation: its tensor, shown to the peers, and its look at theirs.
class SharedLoan final : public Loan {
 public:
  // Throws Error(invalid_argument) when the bytes lie in no block of this process's segment.
  SharedLoan(Host& host, std::shared_ptr<const Vicinity> vicinity, const std::byte* data, size_t bytes, DType dtype,
             std::span<const int64_t> shape);
  ~SharedLoan() override;
  SharedLoan(const SharedLoan&) = delete;
  SharedLoan& operator=(const SharedLoan&) = delete;

  void describe(Batch& batch) override;
  void started(std::shared_ptr<Work> work) override { work_ = std::move(work); }
  const std::shared_ptr<Work>& work() const override { return work_; }
  int size() const override { return static_cast<int>(cards_.size()); }
  View view(Rank rank) const override;
  bool viewing() const override { return viewing_.load(std::memory_order_acquire); }
  void end_viewing() noexcept override;
  bool wait_returned(Deadline deadline) override;

  Card* cards() { return cards_.data(); }  // by rank
  // Once the work is done: whether a peer may still look at this rank's tensor.
  bool lent(bool ask_kernel) const;
  // Whether all of it is history.
  bool over(bool ask_kernel) const;
  // When it is: what it used in the segment may be used again.
  void settle() noexcept;

 private:
  bool is_looking(Rank peer, bool ask_kernel) const;

  Host& host_;
  const std::shared_ptr<const Vicinity> vicinity_;
  const size_t item_bytes_;
  std::byte* block_ = nullptr;  // pinned; none where the tensor is empty
  Slot* slot_;
  Card mine_{};
  std::vector<Card> cards_;  // by rank; zeroes where none came
  std::shared_ptr<Work> work_;
  std::atomic<bool> viewing_{true}, settled_{false};
};

// The loans of a process that are not over.
class Loans {
 public:
  explicit Loans(Host& host) : host_(host) {}

  void add(std::shared_ptr<SharedLoan> loan);
  // Settles what nobody looks at any more. There is no thread that does it: whoever shows tensors, releases views,
  // allocates shared memory or lets go of a communicator comes here.
  void sweep() noexcept;

  Slot* take_slot();
  void give_slot(Slot* slot) noexcept;
  uint64_t next_number() { return number_.fetch_add(1, std::memory_order_relaxed) + 1; }

 private:
  Host& host_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<SharedLoan>> loans_;
  std::vector<Slot*> free_;
  size_t slots_ = 0;  // in all
  Deadline::Clock::time_point last_asked_{};
  std::atomic<uint64_t> number_{0};
};

}  // namespace a2a::shm
