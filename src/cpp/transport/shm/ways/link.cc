#include "transport/shm/ways/link.h"

#include <algorithm>
#include <map>
#include <utility>

namespace a2a::shm {
namespace {

// Whether no run of one list reaches into the memory of a run of the other. Those of several tensors may alternate.
bool disjoint(std::span<const Run> a, std::span<const Run> b) {
  const auto first = [](std::span<const std::byte> memory) { return memory.data(); };
  const auto last = [](std::span<const std::byte> memory) { return memory.data() + memory.size(); };
  const auto memory_of = [&](std::span<const Run> runs) {
    std::vector<std::span<const std::byte>> memory;
    for (const Run& run : runs) memory.push_back(run.memory());
    std::ranges::sort(memory, {}, first);
    return memory;
  };
  if (a.size() == 1 && b.size() == 1) {
    const auto mine = a[0].memory(), theirs = b[0].memory();
    return last(mine) <= first(theirs) || last(theirs) <= first(mine);
  }
  const auto mine = memory_of(a), theirs = memory_of(b);
  auto i = mine.begin(), k = theirs.begin();
  while (i != mine.end() && k != theirs.end()) {
    if (last(*i) <= first(*k)) {
      ++i;
    } else if (last(*k) <= first(*i)) {
      ++k;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

// The receives of all ranks are the output. With labels there are several: receives of one label are one of them.
void Reduction::begin(const Batch& batch, Rank rank) {
  folder.emplace(batch.signature.fold, batch.signature.dtype);
  ranks.clear();
  own.reset();
  output = {};
  left = next_output = 0;
  const bool has_labels = !batch.recvs.empty() && batch.recvs.front().shape != 0;
  outputs.resize(batch.recvs.empty() || has_labels ? 0 : 1);  // keeps the memory of the usual one
  if (!outputs.empty()) outputs[0].ranks.clear();
  std::map<uint32_t, Output> labelled;
  for (std::span<const Run> rest = batch.recvs; !rest.empty();) {
    const Rank peer = rest.front().peer;
    const auto runs = take_runs(rest, peer);
    if (!has_labels) {
      outputs[0].runs = runs;
      outputs[0].ranks.push_back(peer);
    }
    for (size_t i = 0; has_labels && i < runs.size(); ++i) {
      Output& one = labelled[runs[i].shape];
      one.runs = runs.subspan(i, 1);
      one.ranks.push_back(peer);
    }
  }
  for (auto& [label, one] : labelled) outputs.push_back(std::move(one));
  next(rank);
}

bool Reduction::next(Rank rank) {
  if (next_output == outputs.size()) return false;
  Output& one = outputs[next_output++];
  ranks.swap(one.ranks);
  const auto found = std::ranges::find(ranks, rank);
  own.reset();
  if (found != ranks.end()) own = static_cast<size_t>(found - ranks.begin());
  output = {one.runs};
  left = 0;
  for (const Run& run : one.runs) left += run.bytes;
  return true;
}

size_t Reduction::bytes() const {
  size_t bytes = 0;
  for (const Output& one : outputs) {
    for (const Run& run : one.runs) bytes += run.bytes;
  }
  return bytes;
}

void Operation::begin(Batch&& next) {
  batch.swap(next);
  load = {batch.sent_elsewhere, batch.received_elsewhere, 0};
  lists = 0;
  for_all = {};
  sent.begin(batch.sends);
  Head common{};
  set_common(common, batch.signature);
  std::span<const Run> all_sends = batch.sends, all_recvs = batch.recvs;
  Rank peer = 0;
  for (Pair& p : pairs) {
    const auto sends = take_runs(all_sends, peer), recvs = take_runs(all_recvs, peer++);
    p.begin(common, sends, recvs);
    if (batch.way != Way::exchange) continue;
    p.in_left = p.mine.expected;
    load.sent += p.mine.sent;
    load.received += p.mine.expected;
  }
  reduction.folder.reset();
  summing.reset();
  if (batch.folds && batch.way == Way::exchange && batch.refusal.empty()) {
    reduction.begin(batch, rank);
    load.received = batch.received_elsewhere + reduction.bytes();  // one output for all
  }
  if (batch.sum.summands != nullptr && batch.way == Way::exchange && batch.refusal.empty()) {
    summing.emplace(batch.sum, batch.signature.dtype);
  }
  if (calculates()) {
    for (Pair& p : pairs) p.again = 0, p.here = {};
  }
  // This rank knows at once how many bytes it sends itself, which may be fewer than there is room for (at_most).
  own().in_left = std::min(own().in_left, own().mine.sent);
}

bool Operation::own_in_place() const {
  const bool untouched = own().source.index == 0 && own().source.offset == 0;
  return untouched && !batch.at_most && !disjoint(own().source.runs, own().target.runs);
}

std::string Operation::name(const Membership& m) const {
  return name_of(batch.signature) + ": rank " + std::to_string(m.name(m.rank()));
}

void Operation::acknowledge(const Source& from) { publish_copied(from.own_pipe(), step()); }

void Operation::ask_for_copies(const Source& from) { ask_for_chunks(from.own_pipe(), step()); }

}  // namespace a2a::shm
