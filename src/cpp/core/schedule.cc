#include "core/schedule.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace a2a {
namespace {

// Appends the runs cut into pieces of at most max_bytes. The pieces depend on nothing but the length of
// the run, so both ranks of a pair cut alike.
void append_cut(std::vector<Run>& pieces, std::span<const Run> runs, size_t max_bytes) {
  for (const Run& run : runs) {
    for (size_t done = 0; done < run.bytes; done += std::min(max_bytes, run.bytes - done)) {
      pieces.push_back({run.peer, run.data + done, std::min(max_bytes, run.bytes - done)});
    }
  }
}

// Whether the stretches from the first to the last byte of each side meet. The gaps between runs count too, so the
// answer can be a yes too many, which only costs time. Addresses are compared with std::less because only that orders
// pointers into different buffers.
bool may_share_memory(std::span<const Run> a, std::span<const Run> b) {
  const std::less<const std::byte*> before;
  const auto begin = [](const Run& run) -> const std::byte* { return run.data; };
  const auto end = [](const Run& run) -> const std::byte* { return run.data + run.bytes; };
  return before(begin(std::ranges::min(a, before, begin)), end(std::ranges::max(b, before, end))) &&
         before(begin(std::ranges::min(b, before, begin)), end(std::ranges::max(a, before, end)));
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
  refusal.clear();
}

void Batch::swap(Batch& other) noexcept {
  std::swap<Terms>(*this, other);
  sends.swap(other.sends);
  recvs.swap(other.recvs);
  refusal.swap(other.refusal);
}

void set_runs(std::vector<Run>& runs, std::span<const Segment> segments, std::span<std::byte* const> base) {
  runs.resize(segments.size());
  auto run = runs.begin();
  for_each_run(segments, base, [&](Rank peer, std::byte* data, size_t bytes) { *run++ = {peer, data, bytes}; });
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

std::vector<Portion> portions(std::span<const Run> sends, std::span<const Run> recvs, Rank rank, int size, int window,
                              size_t max_bytes) {
  if (window < 0 || max_bytes == 0) {
    throw Error(Code::invalid_argument, "rank " + std::to_string(rank) + ": window = " + std::to_string(window) +
                                            " and max_bytes = " + std::to_string(max_bytes) +
                                            "; at least 0 and 1 are needed");
  }
  const int steps = window == 0 ? size : std::min(window, size);  // per portion
  std::vector<Portion> result(static_cast<size_t>((size - 1) / steps + 1));
  Rotation rotation(sends, recvs, rank, size);
  for (int step = 0; step < size; ++step) {
    Portion& portion = result[static_cast<size_t>(step / steps)];
    const auto [to, from] = rotation.next();
    append_cut(portion.sends, to, max_bytes);
    append_cut(portion.recvs, from, max_bytes);
  }
  return result;
}

void copy_self(std::span<const Run> sends, std::span<const Run> recvs, Rank rank) {
  const std::span<const Run> from = runs_with(sends, rank), to = runs_with(recvs, rank);
  if (from.size() <= 1 || !may_share_memory(from, to)) {
    for (size_t k = 0; k < from.size(); ++k) std::memmove(to[k].data, from[k].data, from[k].bytes);
    return;
  }
  // In place with several runs, a copy may overwrite what a later one reads. All of it is read first.
  std::vector<std::byte> staged;
  for (const Run& run : from) staged.insert(staged.end(), run.data, run.data + run.bytes);
  const std::byte* next = staged.data();
  for (const Run& run : to) {
    std::memcpy(run.data, next, run.bytes);
    next += run.bytes;
  }
}

}  // namespace a2a
