// The sending half of an exchange: which way the bytes go to each peer, and what this rank does for that.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/faultpoint.h"
#include "transport/shm/exchange.h"
#include "transport/shm/protocol.h"
#include "transport/shm/texts.h"

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

// Whether every rank gets the same, as in an allgather.
bool all_alike(std::span<const Run> sends, size_t ranks) {
  if (sends.size() != ranks) return false;
  for (size_t i = 0; i < ranks; ++i) {
    const Run& run = sends[i];
    if (run.peer != static_cast<Rank>(i) || run.data != sends[0].data || run.bytes != sends[0].bytes) return false;
  }
  return true;
}

// Makes copies of so many bytes in all, and tells how long they took if that is due.
template <class Copies>
void timed(StagingStores& stores, size_t bytes, Copies&& copies) {
  if (!stores.is_due()) return copies();
  const auto before = StagingStores::Clock::now();
  copies();
  stores.took(bytes, StagingStores::Clock::now() - before);
}

void store(StagingStores& stores, Cursor& source, std::byte* to, size_t bytes) {
  constexpr size_t kMeasurable = size_t{8} << 10;  // less fits between the CPU and its cache
  if (bytes < kMeasurable) return gather(source, to, bytes);
  timed(stores, bytes, [&] { gather(source, to, bytes, stores.choose()); });
}

// A rank that sends more than it gets stores the rest of a chunk into lines that the peer has read last.
void fill(Chunks& chunks, Cursor& source, uint8_t chunk, size_t bytes) {
  const size_t near = std::min(bytes, chunks.read(chunk));
  if (near > 0) store(chunks.stores(), source, chunks.data(chunk), near);
  if (near < bytes) store(chunks.far_stores(), source, chunks.data(chunk) + near, bytes - near);
}

Chunks::Reuse reuse_of_chunks(const Membership& m, size_t bytes) {
  constexpr size_t kSmall = size_t{8} << 10;
  const bool newest = bytes <= kSmall || m.surroundings().oversubscribed();
  return newest ? Chunks::Reuse::newest : Chunks::Reuse::oldest;
}

}  // namespace

bool Exchange::post(Membership& m) {
  if (batch_.way == Way::pass) return posted_ = true;
  const uint64_t n = number();
  for (Rank peer = 0; peer < m.size(); ++peer) {
    if (peer != m.rank() && !m.slot_free(peer, n)) return false;
  }
  auto& words = m.block().words();
  words.started_op.store(static_cast<uint32_t>(batch_.signature.op), std::memory_order_relaxed);
  words.started.store(n, std::memory_order_relaxed);
  alike_ = all_alike(batch_.sends, pairs_.size());
  too_much_ = is_too_much(m);
  stores_ = m.thresholds().stream(received_bytes_, too_much_) ? Stores::streaming : Stores::cached;
  const bool refused = !batch_.refusal.empty();
  if (refused) write_text(words.refusal_text[n % kSlots], batch_.refusal);
  const Head& own = pair(m.rank()).mine;
  publish_notice(words, n, notice(n, own.op, refused ? 0 : own.memory));
  copy_for_all(m);
  awaited_.reserve(pairs_.size());
  for (int step = 1; step < m.size(); ++step) {
    offer(m, send_peer(m.rank(), m.size(), step));
    awaited_.push_back(recv_peer(m.rank(), m.size(), step));
  }
  m.wake_sleepers();
  const bool later = own_waits_ || (batch_.asynchronous && m.progress().is_served());
  while (!later && !own_copied() && !peers_come_first(m)) copy_own();
  posted_ = true;
  return true;
}

// Whether this rank's own part stays where it is, or parts of one buffer overlap: nothing of it was copied yet then,
// and it takes care, and segments that are cut alike. Between parts of the library nothing overlaps, and they may be
// cut differently.
bool Exchange::own_in_place() const {
  const Pair& own = pair(rank_);
  const bool untouched = own.source.index == 0 && own.source.offset == 0;
  return untouched && !batch_.at_most && !disjoint(own.source.runs, own.target.runs);
}

// Whether there is nothing to do for any peer, now or soon: those whose bytes are missing put them here.
bool Exchange::only_expects() const {
  const auto expects = [this](Rank peer) { return pair(peer).in == Pair::In::expecting; };
  return posted_ && unsettled_.empty() && std::ranges::all_of(awaited_, expects);
}

// A step of this rank's own part, or all of it in place. Stores past the caches are waited for at the end of each step;
// other steps are short, to leave more that goes beside what a peer has.
void Exchange::copy_own() {
  const size_t short_step = (stores_ == Stores::streaming ? size_t{512} : size_t{16}) << 10;
  const size_t step = only_expects() ? kCopyStep : short_step;
  Pair& own = pair(rank_);
  if (own_in_place()) {
    copy_self(batch_.sends, batch_.recvs, rank_);
    own.in_left = 0;
  } else {
    own.in_left -= copy(own.source, own.target, std::min(own.in_left, step), stores_);
  }
}

// Whether the next peer's bytes are there and come before this rank's own part. Those it can copy itself do: its own go
// on beside them. Of those that the kernel copies, where memory sets the pace, they do on every other rank: two kinds
// of copies at once, stores past the caches and the kernel's, take 0.9 to 0.97 of the time of the same one twice.
bool Exchange::peers_come_first(Membership& m) const {
  if (awaited_.empty()) return false;
  const Line& line = m.peer(awaited_.front()).block.line(number(), m.rank());
  Head head;
  if (!observe(line, number(), &head)) return false;
  const auto kind = static_cast<Kind>(head.kind);
  if (kind == Kind::remote) return stores_ == Stores::streaming && rank_ % 2 == 1;
  return kind == Kind::shared || kind == Kind::pointer;
}

// Whether all buffers are too much for the caches, see Thresholds. What all peers get alike is one buffer, and stays in
// a cache for longer.
bool Exchange::is_too_much(const Membership& m) const {
  constexpr size_t kMostOfOne = size_t{8} << 20;
  if (!m.thresholds().too_much(sent_bytes_, received_bytes_)) return false;
  if (!alike_) return true;
  const size_t sent = batch_.sends[0].bytes;
  return sent >= kMostOfOne && m.thresholds().too_much(sent, received_bytes_);
}

// Whether a copy in the segment for all peers takes less time than what this kind does for each of them. Writing it is
// dear, because its lines have to come back from the caches of those who read them last time. With four ranks on two
// CPUs it was worth it from 64 KiB on, with eight from 16, against chunks and against the kernel's copies; those win
// again when all the copies do not fit into the caches.
bool Exchange::copy_pays(Kind kind) const {
  constexpr size_t kLeastSaved = size_t{80} << 10, kMost = size_t{1} << 20, kMostOfAll = size_t{4} << 20;
  const size_t bytes = batch_.sends[0].bytes, ranks = pairs_.size();
  if (ranks < 4 || bytes * (ranks - 2) < kLeastSaved || bytes > kMost) return false;
  return kind == Kind::staged || (kind == Kind::remote && bytes * ranks <= kMostOfAll);
}

// What all peers get alike is copied once. Nobody waits for them to have read it: it stays as it is until the slots of
// this operation are used again.
void Exchange::copy_for_all(Membership& m) {
  if (!alike_) return;
  const Run& run = batch_.sends[0];
  for (Rank peer = 0; peer < m.size() && run.bytes >= m.thresholds().direct(); ++peer) {
    if (peer == rank_ || !copy_pays(choose_kind(m, peer))) continue;
    if (for_all_.data == nullptr) {
      std::byte* room = m.room_for_all(number(), run.bytes);
      if (room == nullptr) return;
      copy_bytes(room, run.data, run.bytes);
      for_all_ = {rank_, room, run.bytes};
    }
    pair(peer).source = {{&for_all_, 1}};
  }
}

void Exchange::offer(Membership& m, Rank peer) {
  const uint64_t n = number();
  Pair& p = pair(peer);
  Line& line = m.block().line(n, peer);
  const Kind kind = choose_kind(m, peer);
  p.mine.kind = static_cast<uint8_t>(kind);
  p.mine.backlog = static_cast<uint8_t>(backlog(m.block().words(), n) | (batch_.remark ? kRemark : 0));
  if (kind == Kind::none) p.mine.first = invite(m, peer);
  if (kind != Kind::none && kind != Kind::refused && kind != Kind::inlined) describe_source(m, peer, kind);
  std::memcpy(&line.head, &p.mine, sizeof(Head));
  if (kind == Kind::inlined) gather(p.source, const_cast<std::byte*>(inline_payload(line)), p.mine.sent);
  faultpoint("publish");
  publish(line, n);
  if (p.out != Pair::Out::settled) unsettled_.push_back(peer);
}

// Whether that is the way for so many bytes of a pair of private memory.
bool Exchange::kernel_copy_pays(Membership& m, size_t bytes) {
  const auto huge = [this] { return huge_pages_.in(batch_.sends); };
  const size_t room = ChunkShape::of(m.size()).capacity();
  return m.thresholds().remote(bytes, room, too_much_, huge, [&m] { return m.kernel_copy_pays_from(); });
}

// Whether a peer that copies from these runs waits for no page fault. In the kernel's copy from another process only
// death ends such a wait: where the memory comes from a file system that does not answer, the peer could neither keep
// its deadline nor be interrupted. Its owner copies such memory into chunks, and waits there alone. Mostly all that is
// sent is in memory, and one look tells.
bool Exchange::waits_for_nothing(std::span<const Run> sends) {
  if (!all_present_) all_present_ = are_present(batch_.sends);
  return *all_present_ || are_present(sends);
}

Kind Exchange::choose_kind(Membership& m, Rank peer) {
  if (!batch_.refusal.empty()) return Kind::refused;
  const Pair& p = pair(peer);
  const size_t bytes = p.mine.sent;
  if (bytes == 0 || batch_.way == Way::compare) return Kind::none;
  if (bytes <= m.block().inline_bytes()) return Kind::inlined;
  const Neighbour& host = *m.peer(peer).host;
  if (bytes >= m.thresholds().direct()) {
    if (host.same_process) return Kind::pointer;
    const auto in_segment = [&m](const Run& run) { return m.arena().contains(run.data, run.bytes); };
    if (std::ranges::all_of(p.source.runs, in_segment)) return Kind::shared;
  }
  const bool may_read = bytes >= m.thresholds().remote_at_least() && host.reads_us;
  if (!may_read || !kernel_copy_pays(m, bytes)) return Kind::staged;
  return waits_for_nothing(p.source.runs) ? Kind::remote : Kind::staged;
}

// In this rank's segment, until the slots of this operation are used again.
ListedRun* Exchange::new_list(Membership& m, size_t entries) {
  return reinterpret_cast<ListedRun*>(m.room_for_list(number(), lists_++, entries * sizeof(ListedRun)));
}

// Fills in where the peer finds the bytes, and what this rank still has to do for them.
void Exchange::describe_source(Membership& m, Rank peer, Kind kind) {
  Pair& p = pair(peer);
  Head& head = p.mine;
  if (kind == Kind::staged) {
    Chunks& chunks = m.chunks_to_fill(peer);
    head.where = m.progress().host().common().offset(chunks.share());
    head.first = p.out_first = chunks.handed();
    p.out_left = (p.mine.sent + chunks.shape().bytes - 1) / chunks.shape().bytes;
    p.out = Pair::Out::streaming;
    const auto chunk = stage_chunk(m, peer);  // the first one travels with the line, the rest while others copy
    head.count = chunk ? 1 + *chunk : 0;
    return;
  }
  if (p.source.runs.data() != &for_all_) {
    p.out = Pair::Out::unacknowledged;
    if (kind != Kind::remote) head.first = invite(m, peer);
  }
  const auto where = [&](const Run& run) {
    return kind == Kind::shared ? m.arena().offset(run.data) : reinterpret_cast<uint64_t>(run.data);
  };
  head.count = static_cast<uint32_t>(p.source.runs.size());
  if (head.count == 1) {
    head.where = where(p.source.runs[0]);
    return;
  }
  ListedRun* const list = new_list(m, p.source.runs.size());
  ListedRun* entry = list;
  for (const Run& run : p.source.runs) *entry++ = {where(run), run.bytes};
  head.where = m.arena().offset(reinterpret_cast<const std::byte*>(list));
}

// Whether there is a chunk to fill.
bool Exchange::has_free_chunk(Membership& m, Rank peer) {
  Chunks& chunks = m.peer(peer).chunks;
  // Looked at only when nothing else is left: the line with the counter changes hands with each chunk that comes back.
  if (chunks.none_free() && !chunks.collect(m.peer(peer).block.pipe(m.rank()).returned)) m.nonsense(peer, "chunk");
  return !chunks.none_free();
}

// Fills a chunk and hands it over, if there is one. Returns which, to be published.
std::optional<uint8_t> Exchange::stage_chunk(Membership& m, Rank peer) {
  if (!has_free_chunk(m, peer)) return std::nullopt;
  Pair& p = pair(peer);
  Chunks& chunks = m.peer(peer).chunks;
  const uint8_t chunk = chunks.next(reuse_of_chunks(m, p.mine.sent));
  fill(chunks, p.source, chunk, p.next_out(chunks.shape().bytes));
  hand_over(m, peer);
  return chunk;
}

// Fills a chunk while it empties another one, both full, if that can be done. Returns whether it was.
bool Exchange::trade_chunks(Membership& m, Rank peer, uint8_t taken) {
  Pair& p = pair(peer);
  Chunks& chunks = m.peer(peer).chunks;
  const size_t bytes = chunks.shape().bytes;
  if (p.out != Pair::Out::streaming || p.next_out(bytes) < bytes || p.in_left < bytes) return false;
  if (stores_ != Stores::cached || !has_free_chunk(m, peer)) return false;
  const uint8_t next = chunks.next(reuse_of_chunks(m, p.mine.sent));
  StagingStores& stores = chunks.read(next) == bytes ? chunks.stores() : chunks.far_stores();
  if (stores.choose() != Stores::cached) return false;
  const Run full{peer, chunks.data(taken), bytes};
  const Run empty{peer, chunks.data(next), bytes};
  Cursor from{{&full, 1}}, to{{&empty, 1}};
  timed(stores, 2 * bytes, [&] { copy_in_turns(from, p.target, p.source, to, bytes); });
  hand_over(m, peer);
  return true;
}

// The next chunk is full.
void Exchange::hand_over(Membership& m, Rank peer) {
  faultpoint("stage");
  Pair& p = pair(peer);
  m.peer(peer).chunks.hand_over(m.block().pipe(peer).handed, reuse_of_chunks(m, p.mine.sent));
  ++p.out_handed;
  if (--p.out_left == 0) {
    p.out = Pair::Out::settled;
    share_out(m, peer);
  }
}

// Gives the peer back what this rank has too many of, unless it still has something to send that goes into them.
void Exchange::share_out(Membership& m, Rank peer) {
  Peer& other = m.peer(peer);
  if (pair(peer).out == Pair::Out::streaming || !other.chunks.taken_since()) return;
  if (!other.chunks.give_back_surplus(other.block.pipe(m.rank()).returned, m.block().pipe(peer).returned)) {
    m.nonsense(peer, "chunk");
  }
}

// The peer cannot read this rank's memory. From now on this pair goes through chunks, this operation included.
void Exchange::change_to_chunks(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  m.peer(peer).host->reads_us = false;
  const std::string name = name_of(batch_.signature) + ": rank ", me = std::to_string(m.name(rank_));
  if (!can_be_read(p.source)) {
    throw Error(Code::backend, name + me + " cannot read its own input: " + std::strerror(EFAULT));
  }
  // Chunks keep their order, and the next operation's may be out already.
  const Line& next = m.block().line(number() + 1, peer);
  if (is_published(next, number() + 1) && static_cast<Kind>(next.head.kind) == Kind::staged) {
    throw Error(Code::backend, name + std::to_string(m.name(peer)) + " may no longer read the memory of rank " + me +
                                   ", which changed while several operations were in flight");
  }
  p.mine.kind = static_cast<uint8_t>(Kind::staged);
  describe_source(m, peer, Kind::staged);
  std::memcpy(&m.block().line(number(), peer).head, &p.mine, sizeof(Head));
  publish_rewritten(m.block().pipe(peer), number());
}

// Stages a chunk, makes a copy to the peer's memory, or looks for the acknowledgement. Returns whether anything moved.
// One chunk at a time: where the peer sends as well, the chunk that has just come from it is the one that is filled
// next.
bool Exchange::stage(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  if (p.out == Pair::Out::unacknowledged) {
    // Who has put its own bytes has copied as well. Only its line tells whether it also expects some.
    if (p.in != Pair::In::awaited && has_copied(m, peer)) {
      p.out = Pair::Out::settled;
      return true;
    }
    const bool remote = static_cast<Kind>(p.mine.kind) == Kind::remote;
    if (!remote || !asks_for_chunks(m.peer(peer).block.pipe(rank_), number())) return false;
    change_to_chunks(m, peer);
    return true;
  }
  if (p.out == Pair::Out::putting) {
    put(m, peer);
    return true;
  }
  if (!stage_chunk(m, peer)) return false;
  publish_count(m.block().pipe(peer).handed, m.peer(peer).chunks.handed());
  return true;
}

}  // namespace a2a::shm
