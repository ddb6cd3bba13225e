// Plans of rows that are listed one by one, and of their weighted sums.
#include <algorithm>
#include <numeric>
#include <string>

#include "a2a/plan.h"

namespace a2a {
namespace {

[[noreturn, gnu::cold]] void refuse(Rank rank, const std::string& text) {
  throw Error(Code::invalid_argument, "rank " + std::to_string(rank) + ": " + text);
}

void check_lengths(Rank rank, int size, const char* side, const RowList& list) {
  if (size < 1 || rank < 0 || rank >= size) refuse(rank, "no such rank in a group of " + std::to_string(size));
  const bool negative = std::ranges::any_of(list.counts, [](int64_t count) { return count < 0; });
  const int64_t total = std::accumulate(list.counts.begin(), list.counts.end(), int64_t{0});
  if (list.counts.size() != static_cast<size_t>(size) || negative || total != static_cast<int64_t>(list.rows.size())) {
    refuse(rank, std::string(side) + " has " + std::to_string(list.counts.size()) + " counts of " +
                     std::to_string(total) + " rows, but " + std::to_string(list.rows.size()) + " rows for " +
                     std::to_string(size) + " ranks");
  }
}

size_t bytes_of(Rank rank, int64_t rows, size_t row_bytes) {
  size_t bytes;
  if (__builtin_mul_overflow(rows, row_bytes, &bytes)) {
    refuse(rank, std::to_string(rows) + " rows of " + std::to_string(row_bytes) + " bytes overflow 64 bits");
  }
  return bytes;
}

// Checks that every row is filled at most once, and that every copied row comes from the rank of the copy.
void check_once(Rank rank, int size, const RowList& list, int64_t rows, const RowCopies* copies) {
  constexpr Rank kNobody = -1, kCopied = -2;
  std::vector<Rank> sources(static_cast<size_t>(rows), kNobody);
  const auto take = [&](int64_t row, Rank source) {
    if (row < 0 || row >= rows) refuse(rank, "recv row " + std::to_string(row) + " is none of " + std::to_string(rows));
    if (sources[static_cast<size_t>(row)] != kNobody) refuse(rank, "row " + std::to_string(row) + " is received twice");
    sources[static_cast<size_t>(row)] = source;
  };
  const int64_t* next = list.rows.data();
  for (Rank peer = 0; peer < size; ++peer) {
    for (int64_t i = 0; i < list.counts[static_cast<size_t>(peer)]; ++i) take(*next++, peer);
  }
  if (copies == nullptr) return;
  if (copies->begins.size() != static_cast<size_t>(size) + 1 || copies->begins.back() != copies->copies.size() ||
      !std::ranges::is_sorted(copies->begins)) {
    refuse(rank, "the copies are not those of " + std::to_string(size) + " ranks");
  }
  for (Rank peer = 0; peer < size; ++peer) {
    for (const auto& [from, to] : copies->of(peer)) {
      if (from < 0 || from >= rows || sources[static_cast<size_t>(from)] != peer) {
        refuse(rank, "row " + std::to_string(from) + " is copied, but does not come from rank " + std::to_string(peer));
      }
      take(to, kCopied);
    }
  }
}

}  // namespace

Plan::Extents Plan::append_rows(std::vector<Segment>& segments, Rank rank, const char* side, int size,
                                std::span<const size_t> row_bytes, const RowList& list, int64_t rows) {
  check_lengths(rank, size, side, list);
  for (const int64_t row : list.rows) {
    if (row < 0 || row >= rows) {
      refuse(rank, std::string(side) + " row " + std::to_string(row) + " is none of " + std::to_string(rows));
    }
  }
  Extents extents;
  for (const size_t bytes : row_bytes) extents.each.push_back(bytes_of(rank, rows, bytes));
  segments.reserve(list.rows.size() * row_bytes.size());
  const int64_t* begin = list.rows.data();
  for (Rank peer = 0; peer < size; ++peer) {
    const int64_t* const end = begin + list.counts[static_cast<size_t>(peer)];
    for (size_t buffer = 0; buffer < row_bytes.size(); ++buffer) {
      const size_t bytes = row_bytes[buffer];
      for (const int64_t* row = begin; row != end && bytes > 0; ++row) {
        segments.push_back({peer, static_cast<int>(buffer), static_cast<size_t>(*row) * bytes, bytes});
      }
    }
    begin = end;
  }
  return extents;
}

Plan Plan::rows(Rank rank, int size, std::span<const size_t> row_bytes, RowList send, int64_t send_rows, RowList recv,
                int64_t recv_rows, std::shared_ptr<const RowCopies> copies) {
  Plan plan(rank, size);
  plan.send_extents_ = append_rows(plan.first().sends, rank, "send", size, row_bytes, send, send_rows);
  plan.recv_extents_ = append_rows(plan.first().recvs, rank, "recv", size, row_bytes, recv, recv_rows);
  check_once(rank, size, recv, recv_rows, copies.get());
  if (copies != nullptr) plan.first().sink = Sink::fan_out;
  plan.copies_ = std::move(copies);
  const auto own = static_cast<size_t>(rank);
  if (send.counts[own] != recv.counts[own]) {
    refuse(rank, "sends itself " + std::to_string(send.counts[own]) + " rows but expects " +
                     std::to_string(recv.counts[own]));
  }
  return plan;
}

Plan Plan::weighted_sum(Rank rank, int size, size_t row_bytes, RowList send, int64_t send_rows, int64_t recv_rows,
                        std::shared_ptr<const Summands> summands) {
  Plan plan(rank, size);
  plan.send_extents_ = append_rows(plan.first().sends, rank, "send", size, {&row_bytes, 1}, send, send_rows);
  plan.recv_extents_.each = {bytes_of(rank, recv_rows, row_bytes)};
  if (summands == nullptr || summands->terms == 0) refuse(rank, "a sum has no terms");
  const std::vector<Rank>& sources = summands->sources;
  const size_t terms = summands->terms;
  if (recv_rows < 0 || sources.size() != static_cast<size_t>(recv_rows) * terms) {
    refuse(rank, std::to_string(sources.size()) + " sources of " + std::to_string(recv_rows) + " rows");
  }
  std::vector<size_t> next(static_cast<size_t>(size) + 1);
  for (const Rank source : sources) {
    if (source < -1 || source >= size) refuse(rank, "a row comes from rank " + std::to_string(source));
    if (source >= 0) ++next[static_cast<size_t>(source) + 1];
  }
  if (static_cast<int64_t>(next[static_cast<size_t>(rank) + 1]) != send.counts[static_cast<size_t>(rank)]) {
    refuse(rank, "sends itself " + std::to_string(send.counts[static_cast<size_t>(rank)]) + " rows but expects " +
                     std::to_string(next[static_cast<size_t>(rank) + 1]));
  }
  std::partial_sum(next.begin(), next.end(), next.begin());
  plan.first().recvs.resize(row_bytes > 0 ? next.back() : 0);
  for (size_t i = 0; i < sources.size() && row_bytes > 0; ++i) {
    if (sources[i] < 0) continue;
    plan.first().recvs[next[static_cast<size_t>(sources[i])]++] = {sources[i], 0, i / terms * row_bytes, row_bytes};
  }
  plan.first().sink = Sink::sum;
  plan.summands_ = std::move(summands);
  return plan;
}

}  // namespace a2a
