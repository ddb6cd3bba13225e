#include "transport/shm/peers/loans.h"

#include <algorithm>
#include <exception>
#include <new>
#include <string>

#include "transport/shm/peers/shm_progress.h"
#include "transport/shm/protocol/protocol.h"

namespace a2a::shm {
namespace {

// Lives while a rank waits until its tensor is no longer viewed. The rank's progress polls it, too.
class Return final : public Active {
 public:
  Return(ShmProgress& progress, const SharedLoan& loan) : progress_(progress), loan_(loan) {
    std::lock_guard lock(progress_.mutex());
    progress_.enter(this);
  }
  ~Return() override {
    std::lock_guard lock(progress_.mutex());
    progress_.leave(this);
  }
  Return(const Return&) = delete;
  Return& operator=(const Return&) = delete;

  bool returned() const { return returned_; }

  bool advance() override {
    if (returned_ || loan_.lent(false)) return false;
    return returned_ = true;
  }
  void check(Deadline::Clock::time_point, bool ask_kernel) override { returned_ |= !loan_.lent(ask_kernel); }

 private:
  ShmProgress& progress_;
  const SharedLoan& loan_;
  bool returned_ = false;
};

// Fills in *view from a peer's card. Returns false when the peer wrote an impossible tensor.
bool describe(Neighbour& peer, const Card& card, size_t item_bytes, View* view) {
  if (!peer.reach(card.where, card.bytes)) return false;
  const auto& slot = *reinterpret_cast<const Slot*>(peer.base + card.slot);
  const uint64_t dims = slot.dims;
  if (dims > kMaxDims) return false;
  view->shape.assign(slot.shape, slot.shape + dims);
  size_t bytes = item_bytes;
  for (const int64_t entries : view->shape) {
    if (entries < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(entries), &bytes)) return false;
  }
  if (bytes != card.bytes) return false;
  view->data = peer.base + card.where;
  view->bytes = bytes;
  return true;
}

bool slot_inside(Neighbour& peer, const Card& card) {
  return card.slot % alignof(Slot) == 0 && peer.reach(card.slot, sizeof(Slot));
}

}  // namespace

SharedLoan::SharedLoan(Host& host, std::shared_ptr<const Vicinity> vicinity, const std::byte* data, size_t bytes,
                       DType dtype, std::span<const int64_t> shape)
    : host_(host),
      vicinity_(std::move(vicinity)),
      item_bytes_(dtype.bytes()),
      slot_(host.loans().take_slot()),
      cards_(vicinity_->neighbours.size()) {
  if (bytes > 0 && (block_ = host.arena().pin(data, bytes)) == nullptr) {
    host.loans().give_slot(slot_);
    throw Error(
        Code::invalid_argument,
        "the tensor does not lie in this rank's shared memory, so peers cannot look at it; make it with empty() "
        "of this process, or copy it into such a tensor");
  }
  slot_->dims = shape.size();
  std::ranges::copy(shape, slot_->shape);
  mine_ = {bytes > 0 ? host.arena().offset(data) : 0, bytes,
           host.arena().offset(reinterpret_cast<const std::byte*>(slot_)), host.loans().next_number()};
  begin_viewing(slot_->word, mine_.views);
}

SharedLoan::~SharedLoan() {
  end_viewing();
  settle();
}

void SharedLoan::settle() noexcept {
  if (settled_.exchange(true) || host_.inherited()) return;
  if (block_ != nullptr) host_.arena().unpin(block_);
  host_.loans().give_slot(slot_);
}

View SharedLoan::view(Rank rank) const {
  if (!viewing()) throw Error(Code::invalid_argument, "the views were released");
  View view;
  if (rank == vicinity_->rank) {
    view.shape.assign(slot_->shape, slot_->shape + slot_->dims);
    view.bytes = mine_.bytes;
    view.data = host_.arena().base() + mine_.where;
    return view;
  }
  const Card& card = cards_[static_cast<size_t>(rank)];
  Neighbour& peer = *vicinity_->neighbours[static_cast<size_t>(rank)];
  if (!slot_inside(peer, card) || !shm::describe(peer, card, item_bytes_, &view)) {
    throw Error(Code::backend, "shared memory: rank " + std::to_string(rank) + " described no possible tensor");
  }
  return view;
}

// An allgather of the cards.
void SharedLoan::describe(Batch& batch) {
  auto* const mine = reinterpret_cast<std::byte*>(&mine_);
  auto* const all = reinterpret_cast<std::byte*>(cards());
  for (Rank rank = 0; rank < size(); ++rank) {
    batch.sends.push_back({rank, mine, sizeof(Card)});
    batch.recvs.push_back({rank, all + static_cast<size_t>(rank) * sizeof(Card), sizeof(Card)});
  }
  // The operation may fail here although peers have this rank's card. The last look gets the peers' cards then, or the
  // operation fails there as well.
  batch.last_look = true;
}

void SharedLoan::end_viewing() noexcept {
  if (!viewing_.exchange(false) || host_.inherited()) return;
  shm::end_viewing(slot_->word);
  before_waking<StdAtomics>();
  for (const auto& peer : vicinity_->neighbours) {
    if (peer != nullptr) wake(peer->sleeper());
  }
  host_.loans().sweep();
}

bool SharedLoan::is_looking(Rank rank, bool ask_kernel) const {
  const Card& card = cards_[static_cast<size_t>(rank)];
  if (rank == vicinity_->rank || card.views == 0) return false;  // a rank whose card has not come views nothing
  Neighbour& peer = *vicinity_->neighbours[static_cast<size_t>(rank)];
  if (peer.lost.load(std::memory_order_relaxed)) return false;
  if (slot_inside(peer, card)) {
    const auto& slot = *reinterpret_cast<const Slot*>(peer.base + card.slot);
    if (!is_viewing(slot.word, card.views)) return false;
  }
  return !ask_kernel || !peer.gone();
}

bool SharedLoan::lent(bool ask_kernel) const {
  for (Rank rank = 0; rank < size(); ++rank) {
    if (is_looking(rank, ask_kernel)) return true;
  }
  return false;
}

bool SharedLoan::wait_returned(Deadline deadline) {
  host_.refuse_if_inherited();
  ShmProgress& progress = *vicinity_->progress;
  const Return here(progress, *this);
  return progress.wait([&] { return here.returned(); }, deadline);
}

bool SharedLoan::over(bool ask_kernel) const {
  if (viewing()) return false;
  try {
    if (work_ != nullptr && !work_->done()) return false;
  } catch (const std::exception&) {  // out of memory
    return false;
  }
  return !lent(ask_kernel);
}

void Loans::add(std::shared_ptr<SharedLoan> loan) {
  std::lock_guard lock(mutex_);
  loans_.push_back(std::move(loan));
}

void Loans::sweep() noexcept try {
  constexpr auto kOften = std::chrono::milliseconds(10);
  if (host_.inherited()) return;
  std::vector<std::shared_ptr<SharedLoan>> loans;
  bool ask_kernel = false;
  {
    std::lock_guard lock(mutex_);
    if (loans_.empty()) return;
    loans = loans_;
    const auto now = Deadline::Clock::now();
    ask_kernel = now - last_asked_ >= kOften;
    if (ask_kernel) last_asked_ = now;
  }
  // Without the mutex: a look at an operation in flight advances all operations of its rank.
  std::erase_if(loans, [&](const auto& loan) { return !loan->over(ask_kernel); });
  for (const auto& loan : loans) loan->settle();
  std::lock_guard lock(mutex_);
  std::erase_if(loans_, [&](const auto& loan) { return std::ranges::find(loans, loan) != loans.end(); });
} catch (const std::exception&) {  // out of memory: the next sweep finds what is left
}

// Slots are never deallocated: peers may read their words for as long as they live.
Slot* Loans::take_slot() {
  constexpr size_t kSlotsAtOnce = 16;
  std::lock_guard lock(mutex_);
  if (free_.empty()) {
    std::byte* memory = host_.arena().allocate(kSlotsAtOnce * sizeof(Slot));
    free_.reserve(slots_ += kSlotsAtOnce);  // so that giving them back needs no memory
    for (size_t i = kSlotsAtOnce; i > 0; --i) free_.push_back(new (memory + (i - 1) * sizeof(Slot)) Slot{});
  }
  Slot* slot = free_.back();
  free_.pop_back();
  return slot;
}

void Loans::give_slot(Slot* slot) noexcept {
  std::lock_guard lock(mutex_);
  free_.push_back(slot);
}

}  // namespace a2a::shm
