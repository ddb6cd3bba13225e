// Tensors that ranks lend to each other (Communicator::allgather_views): their description, and how an owner learns
// that nobody views them any more.
//
// Each rank has a word in its own segment that says whether it views the tensors of this operation. It sets the word
// before it publishes the line that announces the word and its own tensor. So an owner that receives a peer's card
// knows the word that says whether the peer still views the owner's tensor. Only the owner of a word writes it. The
// word of a rank that died stays set; such a rank counts as gone.
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

// The message to each peer. It fits into a line.
struct Card {
  uint64_t where;  // offset of the tensor in the segment
  uint64_t bytes;
  uint64_t slot;   // offset of the slot
  uint64_t views;  // the value of the slot's word while the rank views the tensors; 0: no card
};
static_assert(sizeof(Card) <= inline_bytes(kMaxRanks));

// In the segment of its rank. A peer reads the shape while it views the tensor, and the word at any time.
struct Slot {
  Viewing<StdAtomics> word;
  uint64_t dims;
  int64_t shape[kMaxDims];
};

// One rank's part in one operation: its own tensor, which peers may view, and its views of theirs.
class SharedLoan final : public Loan {
 public:
  // Throws Error(invalid_argument) when no allocated block of this process's segment holds the bytes.
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
  // Whether a peer may still view this rank's tensor. Requires that the work is done.
  bool lent(bool ask_kernel) const;
  // Whether the work is done and neither this rank nor a peer views anything.
  bool over(bool ask_kernel) const;
  // Releases its memory in the segment. Requires over().
  void settle() noexcept;

 private:
  bool is_looking(Rank peer, bool ask_kernel) const;

  Host& host_;
  const std::shared_ptr<const Vicinity> vicinity_;
  const size_t item_bytes_;
  std::byte* block_ = nullptr;  // pinned; none where the tensor is empty
  Slot* slot_;
  Card mine_{};
  std::vector<Card> cards_;  // by rank; zeroes where no card came
  std::shared_ptr<Work> work_;
  std::atomic<bool> viewing_{true}, settled_{false};
};

// The loans of a process that are not over.
class Loans {
 public:
  explicit Loans(Host& host) : host_(host) {}

  void add(std::shared_ptr<SharedLoan> loan);
  // Settles the loans that are over. No thread does it: whoever lends tensors, releases views, allocates shared memory
  // or leaves a communicator calls this.
  void sweep() noexcept;

  Slot* take_slot();
  void give_slot(Slot* slot) noexcept;
  uint64_t next_number() { return number_.fetch_add(1, std::memory_order_relaxed) + 1; }

 private:
  Host& host_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<SharedLoan>> loans_;
  std::vector<Slot*> free_;
  size_t slots_ = 0;  // allocated so far
  Deadline::Clock::time_point last_asked_{};
  std::atomic<uint64_t> number_{0};
};

}  // namespace a2a::shm
