#include "core/in_flight.h"

#include "core/fan_out.h"
#include "core/message.h"

namespace a2a {
namespace {

bool same_block(const Stretch& a, const Stretch& b) {
  if (a.begin != b.begin || a.end != b.end || (a.strides == nullptr) != (b.strides == nullptr)) return false;
  return a.strides == b.strides || *a.strides == *b.strides;
}

void add_sum(Footprint& memory, const WeightedSum& sum) {
  const size_t terms = sum.summands->sources.size(), rows = terms / sum.summands->terms;
  memory.write({sum.out, rows * sum.row_bytes});
  const auto* const weights = reinterpret_cast<const std::byte*>(sum.weights);
  if (weights != nullptr) memory.read({weights, terms * sizeof(float)});
  for (const std::byte* bias : sum.biases) {
    if (bias != nullptr) memory.read({bias, rows * sum.row_bytes});
  }
}

}  // namespace

void Footprint::Spans::add(std::span<const std::byte> memory, const Strides* strides) {
  if (memory.empty()) return;
  const Stretch block{memory.data(), memory.data() + memory.size(), strides};
  begin_ = begin_ == nullptr ? block.begin : std::min(begin_, block.begin);
  end_ = std::max(end_, block.end);
  gaps_ = gaps_ || strides != nullptr;
  if (!blocks_.empty() && strides == nullptr) {
    Stretch& last = blocks_.back();
    if (last.strides == nullptr && last.begin <= block.begin && block.begin <= last.end) {
      last.end = std::max(last.end, block.end);  // the usual case: runs of one tensor in order
      return;
    }
  }
  const auto after = std::ranges::upper_bound(blocks_, block.begin, {}, &Stretch::begin);
  // The runs to and from all peers are often parts of one block with gaps, which counts as a whole for each.
  if (after != blocks_.begin() && same_block(*std::prev(after), block)) return;
  blocks_.insert(after, block);
}

// Walks through both lists in the order of addresses. Blocks of a list may overlap each other, so `end` is the greatest
// end so far. Where blocks have gaps, overlapping ends do not tell, and each pair is compared.
bool Footprint::Spans::any_overlap(const Spans& other) const {
  auto mine = blocks_.begin(), theirs = other.blocks_.begin();
  const std::byte *my_end = nullptr, *their_end = nullptr;
  const bool gaps = gaps_ || other.gaps_;
  while (mine != blocks_.end() || theirs != other.blocks_.end()) {
    const bool is_mine = theirs == other.blocks_.end() || (mine != blocks_.end() && mine->begin <= theirs->begin);
    const Stretch& next = is_mine ? *mine++ : *theirs++;
    if (next.begin < (is_mine ? their_end : my_end)) {
      const auto& others = is_mine ? other.blocks_ : blocks_;
      const auto shares = [&](const Stretch& earlier) { return share_memory(earlier, next); };
      if (!gaps || std::any_of(others.begin(), is_mine ? theirs : mine, shares)) return true;
    }
    auto& end = is_mine ? my_end : their_end;
    end = std::max(end, next.end);
  }
  return false;
}

bool Footprint::Spans::holds(const Spans& other) const {
  if (other.blocks_.empty()) return true;
  if (blocks_.size() != 1 || other.begin_ < begin_ || end_ < other.end_) return false;
  return !gaps_ || (other.blocks_.size() == 1 && same_block(blocks_[0], other.blocks_[0]));
}

void Predecessors::wait(Deadline deadline) {
  for (const auto& earlier : earlier_) {
    try {
      earlier->wait(deadline);
    } catch (const Interrupted&) {
      throw;
    } catch (const Error&) {
      if (!earlier->finished()) throw;
    }
  }
  earlier_.clear();
}

Footprint footprint_of(const Batch& batch) {
  Footprint memory;
  for (const Run& run : batch.sends) memory.read(run);
  for (const Run& run : batch.packs) memory.read(run);
  for (const Moves& moves : batch.later) {
    for (const Run& run : moves.sends) memory.read(run);
    for (const Run& run : moves.recvs) memory.write(run);
  }
  if (batch.fan_out != nullptr) {
    for (const std::span<std::byte> rows : batch.fan_out->buffers()) memory.write(rows);
  }
  if (batch.sum.out != nullptr) {
    add_sum(memory, batch.sum);
  } else {
    for (const Run& run : batch.recvs) memory.write(run);
  }
  return memory;
}

Footprint footprint_of(const Message& message) {
  const Run used = run_of(message);
  Footprint memory;
  message.sends ? memory.read(used) : memory.write(used);
  return memory;
}

}  // namespace a2a
