// Runs the plans of a communicator whose rows are summed or copied when they have arrived.
#include <cstring>
#include <numeric>
#include <vector>

#include "a2a/communicator.h"
#include "core/after_work.h"
#include "core/communicator_state.h"
#include "core/fold/summing.h"
#include "core/rows.h"

namespace a2a {
namespace {

// Sums received rows. They are packed by rank, and those of a rank are in the order of the terms.
void sum_received(const WeightedSum& sum, DType dtype, std::span<const Run> received, int size) {
  std::vector<const std::byte*> next(static_cast<size_t>(size));
  for (size_t i = received.size(); i-- > 0;) next[static_cast<size_t>(received[i].peer)] = received[i].data;
  Summing summing(sum, dtype);
  for (Rank from = summing.next(); from != Summing::kNobody; from = summing.next()) {
    const std::byte*& row = next[static_cast<size_t>(from)];
    summing.add(row, sum.row_bytes);
    row += sum.row_bytes;
  }
}

}  // namespace

std::shared_ptr<const Footprint> copied_rows(const Plan& plan, std::span<void* const> recv) {
  const auto memory = std::make_shared<Footprint>();
  for (size_t i = 0; i < recv.size(); ++i) {
    memory->write(std::span{static_cast<const std::byte*>(recv[i]), plan.recv_extents()[i]});
  }
  return memory;
}

std::shared_ptr<AfterWork> copying(std::shared_ptr<Work> work, Op op, const Plan& plan, std::span<void* const> recv,
                                   std::shared_ptr<const Footprint> memory) {
  const auto copy = [copies = plan.copies(), buffers = std::vector<void*>(recv.begin(), recv.end())](Rank source) {
    for (size_t i = 0; i < buffers.size(); ++i) {
      auto* const base = static_cast<std::byte*>(buffers[i]);
      const size_t bytes = copies->row_bytes[i];
      for (const auto& [from, to] : copies->of(source)) {
        if (bytes > 0)
          std::memcpy(base + static_cast<size_t>(to) * bytes, base + static_cast<size_t>(from) * bytes, bytes);
      }
    }
  };
  return std::make_shared<AfterWork>(std::move(work), to_string(op), plan.size(), true, std::move(memory), copy);
}

std::shared_ptr<Work> Communicator::start_sum(const Plan& plan, const void* send, void* recv, const Call& call) {
  WeightedSum sum;
  sum.summands = plan.summands();
  sum.out = static_cast<std::byte*>(recv);
  const size_t rows = sum.summands->sources.size() / sum.summands->terms;
  sum.row_bytes = rows > 0 ? plan.recv_extents()[0] / rows : 0;
  sum.weights = call.weights;
  for (size_t i = 0; i < sum.biases.size(); ++i) sum.biases[i] = static_cast<const std::byte*>(call.biases[i]);
  bool sums = false;
  std::shared_ptr<std::byte[]> received;
  std::shared_ptr<const Footprint> memory;
  try {
    Summing(sum, call.dtype);  // throws for dtypes that have no weighted sum
    sums = state_->open(call.op)->sums();
    if (!sums) {
      received = std::make_unique_for_overwrite<std::byte[]>(plan.recvs().size() * sum.row_bytes);
      memory = std::make_shared<const Footprint>(footprint_of(sum));
    }
  } catch (const std::exception& error) {
    refuse(call, error.what());
    throw;
  }
  std::vector<Run> runs;
  auto work = state_->submit(call, [&](Batch& batch) {
    put_runs(batch, plan, {&send, 1}, {&recv, 1}, call);
    if (sums) {
      batch.sum = sum;
      return;
    }
    batch.later = memory;
    batch.copy = received;  // keeps it alive as long as the transport needs it
    for (size_t i = 0; i < batch.recvs.size(); ++i) batch.recvs[i].data = received.get() + i * sum.row_bytes;
    runs = batch.recvs;
  });
  if (sums) return work;
  const auto finish = [sum, dtype = call.dtype, runs = std::move(runs), received, size = size()](Rank) {
    sum_received(sum, dtype, runs, size);
  };
  const auto after = std::make_shared<AfterWork>(std::move(work), to_string(call.op), size(), false, memory, finish);
  state_->add_later(after);
  return after;
}

}  // namespace a2a
