#include "core/schedule.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "runtime/hash.h"

namespace a2a {
namespace {

void set_packed_runs(std::vector<Run>& runs, const Buffers& buffers) {
  runs.resize(buffers.segments.size());
  auto run = runs.begin();
  for (const Segment& s : buffers.segments) {
    *run++ = {s.peer, buffers.base[static_cast<size_t>(s.buffer)] + s.offset, s.bytes, nullptr, 0, s.label};
  }
}

bool is_divided(const TensorLayout& layout) { return layout.axis != 0 || layout.compares_blocks; }

// Returns how many strides there may be: one for each tensor, or one for each segment of a tensor that is divided along
// an axis.
size_t most_strides(const Buffers& buffers) { return buffers.layouts.size() + buffers.segments.size(); }

// Returns the hash of the shape of a block of `rows` rows; never 0.
uint32_t shape_hash(const TensorLayout& layout, size_t rows) {
  Hash hash;
  for (size_t i = 0; i < layout.shape.size(); ++i) {
    hash.add(static_cast<int>(i) == layout.axis ? rows : static_cast<uint64_t>(layout.shape[i]));
  }
  return static_cast<uint32_t>(hash.value() ^ hash.value() >> 32) | 1;
}

// Returns the run of a block of a tensor that is divided along an axis.
Run divided_run(const Segment& s, std::byte* base, const TensorLayout& layout, std::vector<Strides>& strides) {
  const auto axis = static_cast<size_t>(layout.axis);
  size_t row_bytes = layout.elem_bytes;  // of one entry of the axis
  for (size_t i = 0; i < layout.shape.size(); ++i) row_bytes *= i == axis ? 1 : static_cast<size_t>(layout.shape[i]);
  if (s.offset % row_bytes != 0 || s.bytes % row_bytes != 0) {
    throw Error(Code::invalid_argument, "a segment of " + std::to_string(s.bytes) + " bytes from byte " +
                                            std::to_string(s.offset) + " on does not divide a tensor along axis " +
                                            std::to_string(layout.axis));
  }
  std::byte* const data = base + static_cast<ptrdiff_t>(s.offset / row_bytes) * layout.strides[axis];
  const size_t rows = s.bytes / row_bytes;
  const uint32_t shape = layout.compares_blocks ? shape_hash(layout, rows) : 0;
  const Strides block(layout, rows);
  if (block.contiguous()) return {s.peer, data, s.bytes, nullptr, 0, shape};
  return {s.peer, data, s.bytes, &strides.emplace_back(block), 0, shape};
}

// Makes the runs of segments that lie in the buffers of one side.
class RunMaker {
 public:
  RunMaker(const Buffers& buffers, std::vector<Strides>& strides)
      : buffers_(buffers), strides_(strides), whole_(buffers.layouts.size()) {}

  Run run(const Segment& s) {
    const auto buffer = static_cast<size_t>(s.buffer);
    std::byte* const base = buffers_.base[buffer];
    if (buffers_.layouts.empty()) return {s.peer, base + s.offset, s.bytes, nullptr, 0, s.label};
    const TensorLayout& layout = buffers_.layouts[buffer];
    if (is_divided(layout)) return divided_run(s, base, layout, strides_);
    if (whole_[buffer] == nullptr) whole_[buffer] = &strides_.emplace_back(layout);
    if (whole_[buffer]->contiguous()) return {s.peer, base + s.offset, s.bytes, nullptr, 0, s.label};
    return {s.peer, base, s.bytes, whole_[buffer], s.offset, s.label};
  }

 private:
  const Buffers& buffers_;
  std::vector<Strides>& strides_;
  std::vector<const Strides*> whole_;  // of each buffer; made when a segment needs it
};

void set_strided_runs(std::vector<Run>& runs, const Buffers& buffers, std::vector<Strides>& strides) {
  if (buffers.layouts.empty()) return set_packed_runs(runs, buffers);
  RunMaker maker(buffers, strides);
  runs.clear();
  runs.reserve(buffers.segments.size());
  for (const Segment& s : buffers.segments) runs.push_back(maker.run(s));
}

}  // namespace

std::string name_of(const Signature& signature) {
  return std::string(to_string(signature.op)) + " #" + std::to_string(signature.number);
}

std::string have_come(std::span<const Rank> ranks) {
  constexpr size_t kMost = 16;
  if (ranks.empty()) return "";
  std::string text = ranks.size() == 1 ? "; rank " : "; ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  if (ranks.size() > kMost) text += " and " + std::to_string(ranks.size() - kMost) + " more";
  return text + (ranks.size() == 1 ? " has come" : " have come");
}

void Batch::clear() {
  static_cast<Terms&>(*this) = {};
  sends.clear();
  recvs.clear();
  folds = false;
  reach = Reach::group;
  parts.clear();
  later.clear();
  strides.reset();
  scratch.reset();
  copy.reset();
  packs.clear();
  pack_strides.reset();
  sum = {};
  fan_out.reset();
  refusal.clear();
}

void Batch::swap(Batch& other) noexcept {
  std::swap<Terms>(*this, other);
  sends.swap(other.sends);
  recvs.swap(other.recvs);
  std::swap(folds, other.folds);
  std::swap(reach, other.reach);
  parts.swap(other.parts);
  later.swap(other.later);
  strides.swap(other.strides);
  scratch.swap(other.scratch);
  copy.swap(other.copy);
  packs.swap(other.packs);
  pack_strides.swap(other.pack_strides);
  std::swap(sum, other.sum);
  fan_out.swap(other.fan_out);
  refusal.swap(other.refusal);
}

void Batch::pack() const {
  std::byte* to = copy.get();
  for (const Run& run : packs) {
    gather(run, 0, run.bytes, to);
    to += run.bytes;
  }
}

std::span<std::byte> Run::memory() const {
  if (strides == nullptr) return {data, bytes};
  if (bytes == 0) return {data, 0};
  // A part of a block may begin or end in a gap; these bytes count as well.
  return {data + strides->begin(), static_cast<size_t>(strides->end() - strides->begin())};
}

bool has_gaps(std::span<const Run> runs) {
  return std::ranges::any_of(runs, [](const Run& run) { return run.strides != nullptr; });
}

void gather(const Run& run, size_t at, size_t bytes, std::byte* to) {
  if (run.strides != nullptr) return gather(run.data, *run.strides, run.begin + at, bytes, to);
  std::copy_n(run.data + at, bytes, to);
}

void scatter(const Run& run, size_t at, size_t bytes, const std::byte* from) {
  if (run.strides != nullptr) return scatter(run.data, *run.strides, run.begin + at, bytes, from);
  std::copy_n(from, bytes, run.data + at);
}

void set_runs(Batch& batch, const Buffers& sends, const Buffers& recvs) {
  if (sends.layouts.empty() && recvs.layouts.empty()) {
    set_packed_runs(batch.sends, sends);
    set_packed_runs(batch.recvs, recvs);
    return;
  }
  auto strides = std::make_shared<std::vector<Strides>>();
  strides->reserve(most_strides(sends) + most_strides(recvs));  // the runs point into it, so it must not grow
  set_strided_runs(batch.sends, sends, *strides);
  set_strided_runs(batch.recvs, recvs, *strides);
  batch.strides = std::move(strides);
}

void set_stages(Batch& batch, const Plan& plan, const Buffers& send, const Buffers& recv, Scratch& scratch) {
  const auto stages = plan.stages();
  batch.signature.agreement = plan.agreement();
  if (plan.scratch_bytes() > 0) batch.scratch = scratch.take(plan.scratch_bytes());
  auto strides = std::make_shared<std::vector<Strides>>();
  size_t most = 0;  // the runs point into `strides`, so it must not grow
  for (const Stage& stage : stages) most += stage.sends.size() + stage.recvs.size();
  strides->reserve(most + send.layouts.size() + recv.layouts.size());
  RunMaker sent(send, *strides), received(recv, *strides);
  const auto run_of = [&](const Segment& s, RunMaker& user) -> Run {
    if (s.space == Space::scratch) return {s.peer, batch.scratch.get() + s.offset, s.bytes, nullptr, 0, s.label};
    return (s.space == Space::received ? received : user).run(s);
  };
  batch.later.resize(stages.size() - 1);
  for (size_t i = 0; i < stages.size(); ++i) {
    const Stage& stage = stages[i];
    Moves& moves = i == 0 ? static_cast<Moves&>(batch) : batch.later[i - 1];
    for (const Segment& s : stage.sends) moves.sends.push_back(run_of(s, sent));
    for (const Segment& s : stage.recvs) moves.recvs.push_back(run_of(s, received));
    moves.folds = stage.sink == Sink::fold;
    moves.reach = stage.reach;
    moves.parts = stage.parts;
  }
  batch.strides = std::move(strides);
}

std::vector<Batch> split_stages(Batch&& batch) {
  std::vector<Moves> later = std::exchange(batch.later, {});
  std::vector<Batch> stages(1 + later.size());
  for (size_t i = 0; i < later.size(); ++i) {
    Batch& stage = stages[i + 1];
    static_cast<Terms&>(stage) = batch;
    static_cast<Moves&>(stage) = std::move(later[i]);
    if (!stage.folds) stage.signature.fold = Fold::none;
    stage.stage = static_cast<uint8_t>(i + 1);
    stage.last = i + 1 == later.size();
    stage.strides = batch.strides;
    stage.copy = batch.copy;
    stage.scratch = batch.scratch;
  }
  batch.last = later.empty();
  stages[0] = std::move(batch);
  return stages;
}

std::span<const Run> runs_with(std::span<const Run> runs, Rank peer) {
  const auto found = std::ranges::equal_range(runs, peer, {}, &Run::peer);
  return {found.begin(), found.end()};
}

Rotation::Rotation(std::span<const Run> sends, std::span<const Run> recvs, Rank rank, int size)
    : sends_(sends),
      recvs_(recvs),
      to_(rank),
      from_(rank),
      size_(size),
      send_at_(static_cast<size_t>(std::ranges::lower_bound(sends, rank, {}, &Run::peer) - sends.begin())),
      recv_at_(static_cast<size_t>(std::ranges::upper_bound(recvs, rank, {}, &Run::peer) - recvs.begin())) {}

Rotation::Step Rotation::next() {
  if (send_at_ == sends_.size()) send_at_ = 0;
  const size_t begin = send_at_;
  while (send_at_ < sends_.size() && sends_[send_at_].peer == to_) ++send_at_;
  if (recv_at_ == 0) recv_at_ = recvs_.size();
  const size_t end = recv_at_;
  while (recv_at_ > 0 && recvs_[recv_at_ - 1].peer == from_) --recv_at_;
  if (++to_ == size_) to_ = 0;
  if (--from_ < 0) from_ = size_ - 1;
  return {sends_.subspan(begin, send_at_ - begin), recvs_.subspan(recv_at_, end - recv_at_)};
}

void copy_self(std::span<const Run> sends, std::span<const Run> recvs, Rank rank) {
  const std::span<const Run> from = runs_with(sends, rank), to = runs_with(recvs, rank);
  if (from.size() == 1 && from[0].strides == nullptr && to[0].strides == nullptr) {
    std::memmove(to[0].data, from[0].data, from[0].bytes);
    return;
  }
  // In place a copy may overwrite the source of a later one, so all sources are read first.
  size_t bytes = 0;
  for (const Run& run : from) bytes += run.bytes;
  const auto staged = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::byte* next = staged.get();
  for (const Run& run : from) {
    gather(run, 0, run.bytes, next);
    next += run.bytes;
  }
  next = staged.get();
  for (const Run& run : to) {
    scatter(run, 0, run.bytes, next);
    next += run.bytes;
  }
}

}  // namespace a2a
