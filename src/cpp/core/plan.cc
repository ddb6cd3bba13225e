#include "a2a/plan.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>

namespace a2a {
namespace {

template <class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void refuse(Rank rank, const Parts&... parts) {
  std::ostringstream text;
  text << "rank " << rank << ": ";
  (text << ... << parts);
  throw Error(Code::invalid_argument, text.str());
}

void check_rank(Rank rank, int size) {
  if (size < 1) refuse(rank, "size = ", size, ", but a group has at least one rank");
  if (rank < 0 || rank >= size) refuse(rank, "no such rank in a group of ", size, " ranks");
}

void check_root(Rank rank, int size, Rank root) {
  check_rank(rank, size);
  if (root < 0 || root >= size) refuse(rank, "root = ", root, ", but the group has ", size, " ranks");
}

size_t checked_bytes(Rank rank, size_t elem_bytes, size_t elems) {
  size_t bytes;
  if (!__builtin_mul_overflow(elem_bytes, elems, &bytes)) return bytes;
  refuse(rank, elems, " elements of ", elem_bytes, " bytes each overflow 64 bits");
}

template <class... Name>
void check_length(Rank rank, int size, size_t length, const Name&... name) {
  if (length != static_cast<size_t>(size)) refuse(rank, name..., " has ", length, " entries for ", size, " ranks");
}

// An argument and its name in messages.
template <class T>
struct Named {
  const char* name;
  std::span<const T> values;
};

// Compares a rank's sends to itself with its receives from itself. Between two ranks the transport compares them.
template <class T>
void check_self(Rank rank, size_t per_rank, const Named<T>& send, const Named<T>& recv) {
  const size_t first = static_cast<size_t>(rank) * per_rank;
  for (size_t i = first; i < first + per_rank; ++i) {
    if (send.values[i] == recv.values[i]) continue;
    refuse(rank, "sends itself ", send.name, "[", i, "] = ", send.values[i], " but expects ", recv.name, "[", i,
           "] = ", recv.values[i]);
  }
}

// Returns two segments that overlap, if there are any. Does not sort them if they have rising offsets, as those of most
// callers have.
std::optional<std::pair<Segment, Segment>> find_overlap(std::span<const Segment> segments) {
  const auto out_of_order = [](const Segment& a, const Segment& b) {
    return a.buffer > b.buffer || (a.buffer == b.buffer && b.offset < a.offset + a.bytes);
  };
  if (std::ranges::adjacent_find(segments, out_of_order) == segments.end()) return {};
  std::vector<Segment> sorted(segments.begin(), segments.end());
  std::ranges::sort(sorted, {}, [](const Segment& s) { return std::tuple(s.buffer, s.offset); });
  const auto found = std::ranges::adjacent_find(sorted, out_of_order);
  if (found == sorted.end()) return {};
  return std::pair(found[0], found[1]);
}

// One side of an alltoallv. All checks are made in elements: once the bytes of the whole buffer fit in size_t, so do
// the offset and the bytes of all that lies inside it.
struct Side {
  const char* name;  // "send" or "recv", the first half of the arguments' names
  Rank rank;
  int size;
  size_t elem_bytes;
  Layout layout;
  size_t elems;  // of the buffer

  // Appends the segments in rank order and returns the side's extent in bytes.
  size_t append_to(std::vector<Segment>& segments) const {
    check_sizes();
    segments.reserve(layout.counts.size());
    size_t packed = 0, extent = 0;  // elements
    for (Rank peer = 0; peer < size; ++peer) {
      const size_t count = nonnegative("_counts", layout.counts, peer);
      const size_t displ = layout.displs.empty() ? packed : nonnegative("_displs", layout.displs, peer);
      if (count == 0) continue;  // touches no memory, wherever its displacement points
      if (displ > elems || count > elems - displ) refuse_outside(peer, count, displ);
      packed = displ + count;
      extent = std::max(extent, packed);
      if (elem_bytes > 0) segments.push_back({peer, 0, displ * elem_bytes, count * elem_bytes});
    }
    return extent * elem_bytes;
  }

  void check_disjoint(std::span<const Segment> segments) const {
    if (layout.displs.empty()) return;  // packed segments cannot overlap
    if (const auto overlap = find_overlap(segments)) refuse_overlap(overlap->first.peer, overlap->second.peer);
  }

 private:
  void check_sizes() const {
    check_length(rank, size, layout.counts.size(), name, "_counts");
    if (!layout.displs.empty()) check_length(rank, size, layout.displs.size(), name, "_displs");
    size_t bytes;
    if (__builtin_mul_overflow(elems, elem_bytes, &bytes)) {
      refuse(rank, name, "_elems = ", elems, " of ", elem_bytes, " bytes each overflow 64 bits");
    }
  }

  size_t nonnegative(const char* list_name, std::span<const int64_t> list, Rank peer) const {
    const int64_t value = list[static_cast<size_t>(peer)];
    if (value < 0) refuse(rank, name, list_name, "[", peer, "] = ", value, " is negative");
    return static_cast<size_t>(value);
  }

  [[noreturn]] void refuse_outside(Rank peer, size_t count, size_t displ) const {
    refuse(rank, name, "_counts[", peer, "] = ", count, " at displacement ", displ, " leaves a buffer of ", elems,
           ", each of ", elem_bytes, " bytes");  // elements, or rows of a tensor
  }

  [[noreturn]] void refuse_overlap(Rank a, Rank b) const {
    const size_t i = static_cast<size_t>(a), j = static_cast<size_t>(b);
    refuse(rank, name, "_counts[", a, "] = ", layout.counts[i], " at displacement ", layout.displs[i], " overlaps ",
           name, "_counts[", b, "] = ", layout.counts[j], " at displacement ", layout.displs[j]);
  }
};

// One side of Paddle's exchange: counts[r * experts + e] rows belong to rank r and expert e.
struct ExpertRows {
  Rank rank;
  int size;
  size_t experts, row_bytes;
  Named<int64_t> counts;

  // Refuses counts that are negative or overflow, so that no offset can overflow. Returns the bytes of all rows.
  size_t checked_bytes() const {
    size_t rows = 0, bytes = 0;
    for (size_t i = 0; i < counts.values.size(); ++i) {
      const int64_t count = counts.values[i];
      if (count < 0) refuse(rank, counts.name, "[", i, "] = ", count, " is negative");
      const size_t before = rows;
      if (__builtin_add_overflow(before, count, &rows) || __builtin_mul_overflow(rows, row_bytes, &bytes)) {
        refuse(rank, counts.name, "[", i, "] = ", count, " after ", before, " rows of ", row_bytes,
               " bytes overflows 64 bits");
      }
    }
    return bytes;
  }

  // Appends the segments by (rank, expert), the order in which they also lie in memory.
  void append_packed_by_rank(std::vector<Segment>& segments) const {
    segments.reserve(counts.values.size());
    size_t next = 0;
    for_each([&](Rank peer, size_t expert, size_t bytes) { append(segments, peer, expert, next, bytes); });
  }

  // Appends the segments by (rank, expert), while they lie in memory by (expert, rank).
  void append_packed_by_expert(std::vector<Segment>& segments) const {
    segments.reserve(counts.values.size());
    std::vector<size_t> next(experts + 1);  // offset of each expert's next rows; the last entry only takes a sum
    for_each([&](Rank, size_t expert, size_t bytes) { next[expert + 1] += bytes; });
    std::partial_sum(next.begin(), next.end(), next.begin());
    for_each([&](Rank peer, size_t expert, size_t bytes) { append(segments, peer, expert, next[expert], bytes); });
  }

 private:
  // Calls visit(peer, expert, bytes) in the order of the counts.
  template <class Visit>
  void for_each(Visit&& visit) const {
    auto count = counts.values.begin();
    for (Rank peer = 0; peer < size; ++peer) {
      for (size_t expert = 0; expert < experts; ++expert)
        visit(peer, expert, static_cast<size_t>(*count++) * row_bytes);
    }
  }

  void append(std::vector<Segment>& segments, Rank peer, size_t expert, size_t& next, size_t bytes) const {
    // Empty segments are left out, so without the number one expert's rows could be taken for another one's.
    const auto number = experts > 1 ? static_cast<uint32_t>(expert + 1) : 0;
    if (bytes > 0) segments.push_back({peer, 0, next, bytes, number});
    next += bytes;
  }
};

// One whole buffer per rank. Returns the extents.
std::vector<size_t> append_buffers(std::vector<Segment>& segments, std::span<const size_t> bytes) {
  segments.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] > 0) segments.push_back({static_cast<Rank>(i), static_cast<int>(i), 0, bytes[i]});
  }
  return {bytes.begin(), bytes.end()};
}

}  // namespace

void Plan::compare(std::span<const uint32_t> labels) {
  for (auto* segments : {&first().sends, &first().recvs}) {
    for (Segment& segment : *segments) segment.label = labels[static_cast<size_t>(segment.buffer)];
  }
}

Plan Plan::alltoallv(Rank rank, int size, size_t elem_bytes, Layout send, size_t send_elems, Layout recv,
                     size_t recv_elems) {
  check_rank(rank, size);
  const Side sending{"send", rank, size, elem_bytes, send, send_elems};
  const Side receiving{"recv", rank, size, elem_bytes, recv, recv_elems};
  Plan plan(rank, size);
  plan.send_extents_.whole = sending.append_to(plan.first().sends);
  plan.recv_extents_.whole = receiving.append_to(plan.first().recvs);
  receiving.check_disjoint(plan.first().recvs);
  check_self<int64_t>(rank, 1, {"send_counts", send.counts}, {"recv_counts", recv.counts});
  return plan;
}

Plan Plan::alltoall_list(Rank rank, int size, std::span<const size_t> send_bytes, std::span<const size_t> recv_bytes) {
  check_rank(rank, size);
  check_length(rank, size, send_bytes.size(), "send_bytes");
  check_length(rank, size, recv_bytes.size(), "recv_bytes");
  check_self<size_t>(rank, 1, {"send_bytes", send_bytes}, {"recv_bytes", recv_bytes});
  Plan plan(rank, size);
  plan.send_extents_.each = append_buffers(plan.first().sends, send_bytes);
  plan.recv_extents_.each = append_buffers(plan.first().recvs, recv_bytes);
  return plan;
}

Plan Plan::allgather(Rank rank, int size, size_t bytes_per_rank) {
  check_rank(rank, size);
  size_t total;
  if (__builtin_mul_overflow(bytes_per_rank, size, &total)) {
    refuse(rank, "bytes_per_rank = ", bytes_per_rank, " from each of ", size, " ranks overflows 64 bits");
  }
  Plan plan(rank, size);
  plan.send_extents_.whole = bytes_per_rank;
  plan.recv_extents_.whole = total;
  plan.first().sends.reserve(static_cast<size_t>(size));
  plan.first().recvs.reserve(static_cast<size_t>(size));
  for (Rank peer = 0; peer < size && bytes_per_rank > 0; ++peer) {
    plan.first().sends.push_back({peer, 0, 0, bytes_per_rank});
    plan.first().recvs.push_back({peer, 0, static_cast<size_t>(peer) * bytes_per_rank, bytes_per_rank});
  }
  return plan;
}

Plan Plan::reduce_scatter(Rank rank, int size, size_t elem_bytes, std::span<const int64_t> counts) {
  check_rank(rank, size);
  check_length(rank, size, counts.size(), "counts");
  const ExpertRows parts{rank, size, 1, elem_bytes, {"counts", counts}};
  Plan plan(rank, size);
  plan.first().sink = Sink::fold;
  plan.send_extents_.whole = parts.checked_bytes();
  parts.append_packed_by_rank(plan.first().sends);
  plan.recv_extents_.whole = static_cast<size_t>(counts[static_cast<size_t>(rank)]) * elem_bytes;
  plan.append_from_all(0, plan.recv_extents_.whole);
  return plan;
}

Plan Plan::allreduce(Rank rank, int size, size_t elem_bytes, size_t elems, bool in_parts) {
  check_rank(rank, size);
  Plan plan(rank, size);
  plan.first().sink = Sink::fold;
  const size_t bytes = checked_bytes(rank, elem_bytes, elems);
  plan.send_extents_.whole = plan.recv_extents_.whole = bytes;
  if (!in_parts) {
    for (Rank peer = 0; peer < size && bytes > 0; ++peer) plan.first().sends.push_back({peer, 0, 0, bytes});
    plan.append_from_all(0, bytes);
    return plan;
  }
  Stage gathering;
  // The parts begin at cache lines, as far as the size of the elements allows.
  const auto ranks = static_cast<size_t>(size), unit = std::max<size_t>(1, 64 / std::max<size_t>(1, elem_bytes));
  const size_t part = (elems + ranks * unit - 1) / (ranks * unit) * unit * elem_bytes;
  const auto part_of = [&](Rank peer) {
    const size_t offset = std::min(bytes, static_cast<size_t>(peer) * part);
    return Segment{peer, 0, offset, std::min(part, bytes - offset)};
  };
  const Segment own = part_of(rank);
  for (Rank peer = 0; peer < size; ++peer) {
    const Segment theirs = part_of(peer);
    if (theirs.bytes > 0) plan.first().sends.push_back(theirs);
    if (peer == rank) continue;
    if (own.bytes > 0) gathering.sends.push_back({peer, 0, own.offset, own.bytes, 0, Space::received});
    if (theirs.bytes > 0) gathering.recvs.push_back(theirs);
  }
  plan.append_from_all(own.offset, own.bytes);
  plan.stages_.push_back(std::move(gathering));
  plan.agreement_ = static_cast<uint32_t>(elems);
  return plan;
}

Plan Plan::scan(Rank rank, int size, size_t elem_bytes, size_t elems, bool exclusive) {
  check_rank(rank, size);
  Plan plan(rank, size);
  plan.first().sink = Sink::fold;
  const size_t bytes = checked_bytes(rank, elem_bytes, elems);
  const Rank first = rank + (exclusive ? 1 : 0), last = rank - (exclusive ? 1 : 0);
  plan.send_extents_.whole = bytes;
  plan.recv_extents_.whole = last >= 0 ? bytes : 0;
  for (Rank peer = first; peer < size && bytes > 0; ++peer) plan.first().sends.push_back({peer, 0, 0, bytes});
  for (Rank peer = 0; peer <= last && bytes > 0; ++peer) plan.first().recvs.push_back({peer, 0, 0, bytes});
  return plan;
}

Plan Plan::reduce(Rank rank, int size, Rank root, size_t bytes) {
  check_root(rank, size, root);
  Plan plan(rank, size);
  plan.first().sink = Sink::fold;
  plan.send_extents_.whole = bytes;
  if (bytes > 0) plan.first().sends.push_back({root, 0, 0, bytes});
  if (rank != root) return plan;
  plan.recv_extents_.whole = bytes;
  plan.append_from_all(0, bytes);
  return plan;
}

Plan Plan::broadcast(Rank rank, int size, Rank root, size_t bytes) {
  check_root(rank, size, root);
  Plan plan(rank, size);
  (rank == root ? plan.send_extents_ : plan.recv_extents_).whole = bytes;
  if (bytes == 0) return plan;
  if (rank != root) plan.first().recvs.push_back({root, 0, 0, bytes});
  for (Rank peer = 0; peer < size && rank == root; ++peer) {
    if (peer != root) plan.first().sends.push_back({peer, 0, 0, bytes});
  }
  return plan;
}

Plan Plan::gather(Rank rank, int size, Rank root, size_t bytes_per_rank) {
  check_root(rank, size, root);
  Plan plan = allgather(rank, size, bytes_per_rank);
  std::erase_if(plan.first().sends, [root](const Segment& s) { return s.peer != root; });
  if (rank == root) return plan;
  plan.first().recvs.clear();
  plan.recv_extents_.whole = 0;
  return plan;
}

Plan Plan::scatter(Rank rank, int size, Rank root, size_t bytes_per_rank) {
  Plan plan = gather(rank, size, root, bytes_per_rank);
  plan.first().sends.swap(plan.first().recvs);
  std::swap(plan.send_extents_, plan.recv_extents_);
  return plan;
}

void Plan::append_from_all(size_t offset, size_t bytes) {
  for (Rank peer = 0; peer < size_ && bytes > 0; ++peer) first().recvs.push_back({peer, 0, offset, bytes});
}

Plan Plan::global_scatter(Rank rank, int size, size_t row_bytes, std::span<const int64_t> local,
                          std::span<const int64_t> global) {
  check_rank(rank, size);
  if (local.size() != global.size() || local.empty() || local.size() % static_cast<size_t>(size) != 0) {
    refuse(rank, "local_count has ", local.size(), " entries and global_count ", global.size(),
           "; both must be the same positive multiple of the ", size, " ranks");
  }
  const size_t experts = local.size() / static_cast<size_t>(size);
  const ExpertRows sending{rank, size, experts, row_bytes, {"local_count", local}};
  const ExpertRows receiving{rank, size, experts, row_bytes, {"global_count", global}};
  Plan plan(rank, size);
  plan.send_extents_.whole = sending.checked_bytes();
  plan.recv_extents_.whole = receiving.checked_bytes();
  check_self(rank, experts, sending.counts, receiving.counts);
  sending.append_packed_by_rank(plan.first().sends);
  receiving.append_packed_by_expert(plan.first().recvs);
  return plan;
}

// The segments of global_scatter with the sides exchanged. Neither side of it overlaps.
Plan Plan::global_gather(Rank rank, int size, size_t row_bytes, std::span<const int64_t> local,
                         std::span<const int64_t> global) {
  Plan plan = global_scatter(rank, size, row_bytes, local, global);
  plan.first().sends.swap(plan.first().recvs);
  std::swap(plan.send_extents_, plan.recv_extents_);
  return plan;
}

Plan Plan::of_stages(Rank rank, int size, std::vector<Stage> stages, std::vector<size_t> send_bytes,
                     std::vector<size_t> recv_bytes, uint32_t agreement) {
  check_rank(rank, size);
  if (stages.empty()) refuse(rank, "a plan has at least one stage");
  Plan plan(rank, size);
  plan.stages_ = std::move(stages);
  plan.agreement_ = agreement;
  plan.send_extents_.each = std::move(send_bytes);
  plan.recv_extents_.each = std::move(recv_bytes);
  return plan;
}

Plan Plan::with_stages(std::vector<Stage> stages, size_t scratch_bytes, uint32_t agreement) const {
  if (stages.empty()) refuse(rank_, "a plan has at least one stage");
  Plan plan(rank_, size_);
  plan.stages_ = std::move(stages);
  plan.scratch_bytes_ = scratch_bytes;
  plan.agreement_ = agreement != 0 ? agreement : agreement_;
  plan.summands_ = summands_;
  plan.copies_ = copies_;
  plan.send_extents_ = send_extents_;
  plan.recv_extents_ = recv_extents_;
  return plan;
}

Plan Plan::transpose() const {
  if (stages_.front().sink != Sink::copy) refuse(rank_, "cannot transpose a reduction, or copies");
  if (const auto overlap = find_overlap(sends())) {
    const auto& [a, b] = *overlap;
    refuse(rank_, "cannot transpose: the send segments to rank ", a.peer, " (bytes ", a.offset, " to ",
           a.offset + a.bytes, ") and to rank ", b.peer, " (bytes ", b.offset, " to ", b.offset + b.bytes,
           ") overlap, so they would be received into the same memory");
  }
  Plan plan(rank_, size_);
  plan.first().sends = stages_.front().recvs;
  plan.first().recvs = stages_.front().sends;
  plan.send_extents_ = recv_extents_;
  plan.recv_extents_ = send_extents_;
  return plan;
}

}  // namespace a2a
