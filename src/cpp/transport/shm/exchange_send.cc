// The sending half of an exchange: which way the bytes go to each peer, and what this rank does for that.
#include <algorithm>
#include <cstring>

#include "transport/shm/exchange.h"
#include "transport/shm/faultpoint.h"
#include "transport/shm/protocol.h"

namespace a2a::shm {
namespace {

// Whether all runs of one list lie on one side of all runs of the other.
bool disjoint(std::span<const Run> a, std::span<const Run> b) {
  const auto first = [](std::span<const Run> runs) { return std::ranges::min(runs, {}, &Run::data).data; };
  const auto last = [](std::span<const Run> runs) {
    const auto end = [](const Run& run) { return run.data + run.bytes; };
    return end(std::ranges::max(runs, {}, end));
  };
  return a.empty() || b.empty() || last(a) <= first(b) || last(b) <= first(a);
}

void fill(Ring& ring, Cursor& source, std::byte* chunk, size_t bytes) {
  constexpr size_t kMeasurable = size_t{8} << 10;  // less fits between the CPU and its cache
  if (bytes < kMeasurable) return gather(source, chunk, bytes);
  const auto before = StagingStores::Clock::now();
  gather(source, chunk, bytes, ring.stores.choose());
  ring.stores.took(bytes, StagingStores::Clock::now() - before);
}

}  // namespace

// A step of this rank's own part. In place, or with parts of one buffer that overlap, all of it, the careful way, which
// wants the segments cut alike. Between parts of the library nothing overlaps, and they may be cut differently.
void Exchange::copy_own() {
  Pair& own = pair(rank_);
  const bool first = own.source.index == 0 && own.source.offset == 0;
  if (first && !batch_.at_most && !disjoint(own.source.runs, own.target.runs)) {
    copy_self(batch_.sends, batch_.recvs, rank_);
    own.in_left = 0;
  } else {
    own.in_left -= copy(own.source, own.target, std::min(own.in_left, kCopyStep), stores_);
  }
}

void Exchange::offer(Membership& m, Rank peer) {
  const uint64_t n = number();
  Pair& p = pair(peer);
  Line& line = m.block().line(n, peer);
  const Kind kind = choose_kind(m, peer);
  Head head = p.mine;
  head.kind = static_cast<uint8_t>(kind);
  head.backlog = backlog(m.block().words(), n);
  if (kind != Kind::none && kind != Kind::refused && kind != Kind::inlined) describe_source(m, peer, kind, head);
  std::memcpy(&line.head, &head, sizeof(head));
  if (kind == Kind::inlined) gather(p.source, const_cast<std::byte*>(inline_payload(line)), p.mine.sent);
  faultpoint("publish");
  publish(line, n);
  if (p.out != Pair::Out::settled) unsettled_.push_back(peer);
}

Kind Exchange::choose_kind(Membership& m, Rank peer) const {
  if (!batch_.refusal.empty()) return Kind::refused;
  const Pair& p = pair(peer);
  const size_t bytes = p.mine.sent;
  if (bytes == 0 || batch_.way == Way::compare) return Kind::none;
  if (bytes <= kInlineBytes) return Kind::inlined;
  const Neighbour& host = *m.peer(peer).host;
  if (bytes >= m.thresholds().direct()) {
    if (host.same_process) return Kind::pointer;
    const auto in_segment = [&m](const Run& run) { return m.arena().contains(run.data, run.bytes); };
    if (std::ranges::all_of(p.source.runs, in_segment)) return Kind::shared;
  }
  return host.reads_us && m.thresholds().remote(bytes) ? Kind::remote : Kind::ring;
}

// Fills in where the peer finds the bytes, and what this rank still has to do for them.
void Exchange::describe_source(Membership& m, Rank peer, Kind kind, Head& head) {
  Pair& p = pair(peer);
  if (kind == Kind::ring) {
    Ring& ring = m.ring(peer);
    head.where = m.arena().offset(ring.base);
    head.first = ring.produced;
    p.out_left = (p.mine.sent + m.ring_shape().chunk_bytes - 1) / m.ring_shape().chunk_bytes;
    p.out = Pair::Out::streaming;
    head.count = stage_chunk(m, peer) ? 1 : 0;  // the first chunk travels with the line, the rest while others copy
    return;
  }
  p.out = Pair::Out::unacknowledged;
  const auto where = [&](const Run& run) {
    return kind == Kind::shared ? m.arena().offset(run.data) : reinterpret_cast<uint64_t>(run.data);
  };
  head.count = static_cast<uint32_t>(p.source.runs.size());
  if (head.count == 1) {
    head.where = where(p.source.runs[0]);
    return;
  }
  std::byte* list = m.arena().allocate(p.source.runs.size() * sizeof(ListedRun));
  lists_.push_back(list);
  auto* entry = reinterpret_cast<ListedRun*>(list);
  for (const Run& run : p.source.runs) *entry++ = {where(run), run.bytes};
  head.where = m.arena().offset(list);
}

bool Exchange::stage_chunk(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  Ring& ring = m.peer(peer).ring;
  const RingShape& shape = m.ring_shape();
  if (ring.produced - ring.consumed == shape.chunks) {
    const uint64_t before = number() - 1;
    if (m.finished(peer, before)) ring.consumed = std::max(ring.consumed, ring.end[before % kSlots]);
    ring.consumed = std::max(ring.consumed, consumed(m.peer(peer).block.pipe(m.rank())));
    // A peer's counter is not trusted to be sane: more than was produced would let chunks overwrite each other.
    if (ring.consumed > ring.produced) m.nonsense(peer, "count of chunks");
    if (ring.produced - ring.consumed == shape.chunks) return false;
  }
  const size_t bytes = p.out_left > 1 ? shape.chunk_bytes : (p.mine.sent - 1) % shape.chunk_bytes + 1;
  fill(ring, p.source, ring.base + shape.offset(ring.produced), bytes);
  faultpoint("stage");
  ++ring.produced;
  if (--p.out_left == 0) {
    p.out = Pair::Out::settled;
    ring.end[number() % kSlots] = ring.produced;
  }
  return true;
}

// Stages what fits, or looks for the acknowledgement. Returns whether anything moved.
bool Exchange::stage(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  if (p.out == Pair::Out::unacknowledged) {
    if (!m.finished(peer, number())) return false;
    p.out = Pair::Out::settled;
    return true;
  }
  bool moved = false;
  while (p.out == Pair::Out::streaming && stage_chunk(m, peer)) {
    publish_produced(m.block().pipe(peer), m.peer(peer).ring.produced);
    moved = true;
  }
  return moved;
}

}  // namespace a2a::shm
