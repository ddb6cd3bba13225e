// Views of the peers' tensors: an allgather of descriptions, and what is looked at then.
#include <string>

#include "a2a/communicator_state.h"
#include "transport/shm/loans.h"

namespace a2a {
namespace {

size_t bytes_of(DType dtype, std::span<const int64_t> shape) {
  if (shape.size() > shm::kMaxDims) {
    throw Error(Code::invalid_argument, "the tensor has " + std::to_string(shape.size()) + " dimensions; at most " +
                                            std::to_string(shm::kMaxDims) + " are possible");
  }
  size_t bytes = dtype.bytes();
  for (const int64_t entries : shape) {
    if (entries < 0 || __builtin_mul_overflow(bytes, static_cast<size_t>(entries), &bytes)) {
      throw Error(Code::invalid_argument, "the tensor's shape contains " + std::to_string(entries));
    }
  }
  return bytes;
}

// Every rank's card to every rank.
void put_cards(shm::Loan& loan, Batch& batch) {
  auto* const mine = reinterpret_cast<std::byte*>(const_cast<shm::Card*>(&loan.mine()));
  auto* const all = reinterpret_cast<std::byte*>(loan.cards());
  for (Rank rank = 0; rank < loan.size(); ++rank) {
    batch.sends.push_back({rank, mine, sizeof(shm::Card)});
    batch.recvs.push_back({rank, all + static_cast<size_t>(rank) * sizeof(shm::Card), sizeof(shm::Card)});
  }
  // Peers may get this rank's card although the operation fails here. Then theirs are there too, or they fail as well.
  batch.last_look = true;
}

}  // namespace

std::shared_ptr<Views> Communicator::start_views(const void* data, DType dtype, std::span<const int64_t> shape,
                                                 std::optional<Deadline> deadline) {
  state_->home.refuse_if_inherited();
  const auto vicinity = state_->open(Op::allgather_views)->vicinity();
  shm::Loans& loans = state_->home.loans();
  loans.sweep();  // so that a program that only shows tensors gets its memory back
  Call call;
  call.op = Op::allgather_views;
  call.dtype = dtype;
  call.deadline = deadline;
  std::shared_ptr<shm::Loan> loan;
  std::shared_ptr<Views> views;
  try {
    if (vicinity == nullptr) {
      throw Error(Code::unsupported,
                  "ranks of this group live on several hosts, and cannot look at each other's memory; use allgather(), "
                  "or a group of one host's ranks");
    }
    const size_t bytes = bytes_of(dtype, shape);
    loan =
        std::make_shared<shm::Loan>(state_->home, vicinity, static_cast<const std::byte*>(data), bytes, dtype, shape);
    views = std::make_shared<Views>(loan);
    loans.add(loan);
  } catch (const Error& error) {
    const std::string reason =
        std::string(to_string(call.op)) + ": rank " + std::to_string(rank()) + ": " + error.what();
    refuse(call, reason);
    throw Error(error.code(), reason);
  } catch (const std::bad_alloc& error) {
    refuse(call, error.what());
    throw;
  }
  loan->set_work(state_->submit(call, [&](Batch& batch) { put_cards(*loan, batch); }));
  return views;
}

std::shared_ptr<Views> Communicator::allgather_views(const void* data, DType dtype, std::span<const int64_t> shape,
                                                     std::optional<Deadline> deadline) {
  auto views = start_views(data, dtype, shape, deadline);
  views->work()->wait();
  return views;
}

Views::Views(std::shared_ptr<shm::Loan> loan) : loan_(std::move(loan)) {}

Views::~Views() { release(); }

const std::shared_ptr<Work>& Views::work() const { return loan_->work(); }

int Views::size() const { return loan_->size(); }

View Views::view(Rank rank) const { return loan_->view(rank); }

void Views::release() noexcept {
  if (!loan_->viewing()) return;
  loan_->end_viewing();
  loan_->host().loans().sweep();
}

bool Views::released() const { return !loan_->viewing(); }

bool Views::wait_released(Deadline deadline) {
  loan_->host().refuse_if_inherited();
  release();  // two ranks that wait while they look would wait for each other
  return loan_->wait_returned(deadline);
}

}  // namespace a2a
