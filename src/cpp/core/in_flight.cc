#include "core/in_flight.h"

#include "core/message.h"
#include "core/schedule.h"

namespace a2a {

void Footprint::Spans::add(std::span<const std::byte> memory) {
  if (memory.empty()) return;
  const Span span{memory.data(), memory.data() + memory.size()};
  begin_ = begin_ == nullptr ? span.begin : std::min(begin_, span.begin);
  end_ = std::max(end_, span.end);
  if (!spans_.empty() && spans_.back().begin <= span.begin && span.begin <= spans_.back().end) {
    spans_.back().end = std::max(spans_.back().end, span.end);  // the usual case: runs of one tensor in order
    return;
  }
  const auto after = std::ranges::upper_bound(spans_, span.begin, {}, &Span::begin);
  spans_.insert(after, span);
}

// Walks through both lists in the order of addresses. Spans of a list may overlap each other, so `end` is the greatest
// end so far.
bool Footprint::Spans::any_overlap(const Spans& other) const {
  auto mine = spans_.begin(), theirs = other.spans_.begin();
  const std::byte *my_end = nullptr, *their_end = nullptr;
  while (mine != spans_.end() || theirs != other.spans_.end()) {
    const bool is_mine = theirs == other.spans_.end() || (mine != spans_.end() && mine->begin <= theirs->begin);
    const Span& next = is_mine ? *mine++ : *theirs++;
    if (next.begin < (is_mine ? their_end : my_end)) return true;
    auto& end = is_mine ? my_end : their_end;
    end = std::max(end, next.end);
  }
  return false;
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
  for (const Run& run : batch.sends) memory.read(run.memory());
  if (batch.sum.out == nullptr) {
    for (const Run& run : batch.recvs) memory.write(run.memory());
    return memory;
  }
  const WeightedSum& sum = batch.sum;
  const size_t terms = sum.summands->sources.size(), rows = terms / sum.summands->terms;
  memory.write({sum.out, rows * sum.row_bytes});
  const auto* const weights = reinterpret_cast<const std::byte*>(sum.weights);
  if (weights != nullptr) memory.read({weights, terms * sizeof(float)});
  for (const std::byte* bias : sum.biases) {
    if (bias != nullptr) memory.read({bias, rows * sum.row_bytes});
  }
  return memory;
}

Footprint footprint_of(const Message& message) {
  std::span<const std::byte> used{message.data, message.bytes};
  if (const auto* packed = message.packed.get()) {
    const Strides& strides = packed->strides;
    used = {packed->data + strides.begin(), static_cast<size_t>(strides.end() - strides.begin())};
  }
  Footprint memory;
  message.sends ? memory.read(used) : memory.write(used);
  return memory;
}

}  // namespace a2a
