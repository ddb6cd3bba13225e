#include "transport/shm/ways/link.h"

#include <algorithm>

namespace a2a::shm {
namespace {

// Whether all runs of one list lie below or above all runs of the other.
bool disjoint(std::span<const Run> a, std::span<const Run> b) {
  const auto begin = [](const Run& run) { return run.memory().data(); };
  const auto end = [](const Run& run) { return run.memory().data() + run.memory().size(); };
  const auto first = [&](std::span<const Run> runs) { return begin(std::ranges::min(runs, {}, begin)); };
  const auto last = [&](std::span<const Run> runs) { return end(std::ranges::max(runs, {}, end)); };
  return a.empty() || b.empty() || last(a) <= first(b) || last(b) <= first(a);
}

}  // namespace

// The receives of all ranks are the output.
void Reduction::begin(const Batch& batch, Rank rank) {
  folder.emplace(batch.signature.fold, batch.signature.dtype);
  ranks.clear();
  own.reset();
  output = {};
  std::span<const Run> rest = batch.recvs;
  while (!rest.empty()) {
    if (rest.front().peer == rank) own = ranks.size();
    ranks.push_back(rest.front().peer);
    output = {take_runs(rest, ranks.back())};
  }
  left = 0;
  for (const Run& run : output.runs) left += run.bytes;
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
  if (batch.signature.fold != Fold::none && batch.way == Way::exchange && batch.refusal.empty()) {
    reduction.begin(batch, rank);
    load.received = batch.received_elsewhere + reduction.left;  // one output for all
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
