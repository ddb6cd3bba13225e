#include "transport/shm/exchange.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/shm/faultpoint.h"
#include "transport/shm/protocol.h"

namespace a2a::shm {
namespace {

// The most a rank copies for one peer before it looks after the others, deadlines and aborts again.
constexpr size_t kCopyStep = size_t{1} << 20;

// Says that this rank is copying from a peer's memory, in steps short enough to wait for. A peer that gives up waits
// for the end of the step before its caller may free that memory (see Membership::post_abort).
class ReadingGuard {
 public:
  ReadingGuard(Membership& m, Rank peer) : words_(m.block().words()) {
    begin_reading(words_, static_cast<uint32_t>(peer) + 1);
    try {
      m.throw_if_aborted(peer);
    } catch (...) {
      end_reading(words_);
      throw;
    }
  }
  ~ReadingGuard() { end_reading(words_); }
  ReadingGuard(const ReadingGuard&) = delete;
  ReadingGuard& operator=(const ReadingGuard&) = delete;

 private:
  RankWords& words_;
};

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

[[noreturn]] void nonsense(Membership& m, Rank peer, const char* what) {
  m.throw_if_aborted(peer);  // what it left behind when it gave up need not make sense
  throw Error(Code::backend,
              "shared memory: rank " + std::to_string(m.name(peer)) + " wrote a line with a bad " + what);
}

}  // namespace

Exchange::Exchange(Batch batch, std::shared_ptr<Progress> progress, Rank rank, int size)
    : batch_(std::move(batch)), progress_(std::move(progress)), rank_(rank), pairs_(static_cast<size_t>(size)) {
  for (Rank peer = 0; peer < size; ++peer) {
    const auto sends = runs_with(batch_.sends, peer), recvs = runs_with(batch_.recvs, peer);
    Pair& p = pair(peer);
    p.mine = facts(batch_.signature, sends, recvs);
    p.source.runs = sends;
    p.target.runs = recvs;
    if (batch_.way != Way::exchange) continue;
    p.in_left = p.mine.expected;
    received_bytes_ += p.mine.expected;
  }
}

bool Exchange::streaming() const {
  return std::ranges::any_of(unsettled_, [this](Rank peer) { return pair(peer).out == Pair::Out::streaming; });
}

bool Exchange::done() {
  progress_->host().refuse_if_inherited();
  if (!finished()) progress_->poll();
  return finished();
}

bool Exchange::wait_until(Deadline deadline) {
  progress_->host().refuse_if_inherited();
  if (!finished() && !progress_->wait([this] { return finished(); }, deadline)) return false;
  if (error_) throw *error_;
  return true;
}

bool Exchange::arrived(Rank rank) {
  progress_->host().refuse_if_inherited();
  if (finished()) return !error_;
  progress_->poll();
  std::lock_guard lock(progress_->mutex());
  if (finished()) return !error_;
  if (rank == rank_) return posted_;
  const Pair& p = pair(rank);
  return p.in == Pair::In::arrived && static_cast<Kind>(p.theirs.kind) != Kind::refused && agree(p.mine, p.theirs);
}

// ---- sending -------------------------------------------------------------------------------------------------------

bool Exchange::post(Membership& m) {
  if (batch_.way == Way::pass) return posted_ = true;
  const uint64_t n = number();
  for (Rank peer = 0; peer < m.size(); ++peer) {
    if (peer != m.rank() && !m.slot_free(peer, n)) return false;
  }
  auto& words = m.block().words();
  words.started_op.store(static_cast<uint32_t>(batch_.signature.op), std::memory_order_relaxed);
  words.started.store(n, std::memory_order_relaxed);
  if (received_bytes_ >= m.thresholds().stream) stores_ = Stores::streaming;
  const bool refused = !batch_.refusal.empty();
  if (refused) write_text(words.refusal_text[n % kSlots], batch_.refusal);
  const Head& own = pair(m.rank()).mine;
  publish_notice(words, n, notice(n, own.op, refused ? 0 : own.memory));
  for (int step = 1; step < m.size(); ++step) {
    offer(m, send_peer(m.rank(), m.size(), step));
    awaited_.push_back(recv_peer(m.rank(), m.size(), step));
  }
  m.wake_sleepers();
  if (batch_.way == Way::exchange) copy_own();
  posted_ = true;
  return true;
}

// This rank's own part. In place, or with parts of one buffer that overlap, the careful way.
void Exchange::copy_own() {
  const auto sends = runs_with(batch_.sends, rank_), recvs = runs_with(batch_.recvs, rank_);
  if (!disjoint(sends, recvs)) return copy_self(batch_.sends, batch_.recvs, rank_);
  Cursor from{sends}, to{recvs};
  copy(from, to, pair(rank_).mine.sent, stores_);
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
  if (bytes >= m.thresholds().shared) {
    if (host.same_process) return Kind::pointer;
    const auto in_segment = [&m](const Run& run) { return m.arena().contains(run.data, run.bytes); };
    if (std::ranges::all_of(p.source.runs, in_segment)) return Kind::shared;
  }
  return bytes >= m.thresholds().remote && host.reads_us ? Kind::remote : Kind::ring;
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
    if (ring.consumed > ring.produced) nonsense(m, peer, "count of chunks");
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

// ---- receiving -----------------------------------------------------------------------------------------------------

bool Exchange::advance(Membership& m) {
  if (batch_.way == Way::pass) {
    m.pass(batch_.signature);
    finish(m);
    return true;
  }
  bool moved = false;
  std::erase_if(awaited_, [&](Rank peer) {
    moved |= receive(m, peer);
    return pair(peer).in == Pair::In::arrived;
  });
  std::erase_if(unsettled_, [&](Rank peer) {
    if (pair(peer).out != Pair::Out::settled) moved |= stage(m, peer);
    return pair(peer).out == Pair::Out::settled;
  });
  if (awaited_.empty() && !received_) {
    received_ = moved = true;
    auto& words = m.block().words();
    if (batch_.way == Way::compare && !quarrels_.empty()) {
      write_text(words.quarrel_text[number() % kSlots], quarrels());
      publish_quarrel(words, number());
    }
    faultpoint("acknowledge");
    publish_done(words, number());
    faultpoint("acknowledged");
  }
  if (moved) m.wake_sleepers();
  if (received_ && unsettled_.empty() && heard_all(m)) finish(m);
  return moved;
}

bool Exchange::receive(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  const size_t before = p.in_left;
  const bool opened = p.in == Pair::In::awaited && open(m, peer);
  if (p.in == Pair::In::streaming) take_chunks(m, peer);
  if (p.in == Pair::In::pulling) pull(m, peer);
  return opened || p.in_left != before || p.in == Pair::In::arrived;
}

// Looks for the peer's line and, if it is there, compares the facts and prepares to take the bytes.
bool Exchange::open(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  Peer& other = m.peer(peer);
  const Line& line = other.block.line(number(), m.rank());
  if (!observe(line, number(), &p.theirs)) return false;
  learn_from_backlog(p.theirs, number(), &other.done);
  const auto kind = static_cast<Kind>(p.theirs.kind);
  if (!batch_.refusal.empty()) {
    p.in = Pair::In::arrived;  // everybody was told; what the others wanted to send no longer matters
    return true;
  }
  if (kind == Kind::refused || !agree(p.mine, p.theirs)) {
    disagree(m, peer);
    return true;
  }
  switch (kind) {
    case Kind::none:
      if (p.in_left != 0) nonsense(m, peer, "kind");
      p.in = Pair::In::arrived;
      break;
    case Kind::inlined:
      if (p.in_left > kInlineBytes) nonsense(m, peer, "kind");
      scatter(p.target, inline_payload(line), p.in_left);
      faultpoint("copy");
      p.in_left = 0;
      p.in = Pair::In::arrived;
      break;
    case Kind::ring:
      if (p.theirs.where > other.host->bytes || other.host->bytes - p.theirs.where < m.ring_shape().bytes()) {
        nonsense(m, peer, "ring");
      }
      p.in_next = p.theirs.first;
      p.in = Pair::In::streaming;
      break;
    case Kind::shared:
    case Kind::pointer:
    case Kind::remote:
      begin_pull(m, peer, kind);
      break;
    default:
      nonsense(m, peer, "kind");
  }
  return true;
}

void Exchange::begin_pull(Membership& m, Rank peer, Kind kind) {
  Pair& p = pair(peer);
  const Neighbour& host = *m.peer(peer).host;
  if ((kind == Kind::pointer && !host.same_process) || (kind == Kind::remote && !host.readable))
    nonsense(m, peer, "kind");
  const size_t count = p.theirs.count;
  std::vector<ListedRun> entries(1, {p.theirs.where, p.theirs.sent});
  if (count != 1) {
    const size_t bytes = count * sizeof(ListedRun);
    // No run is empty, so a list that is longer than the bytes is none; it could be as long as all memory.
    if (count == 0 || count > p.theirs.sent || p.theirs.where % alignof(ListedRun) != 0 ||
        p.theirs.where > host.bytes || host.bytes - p.theirs.where < bytes) {
      nonsense(m, peer, "list of runs");
    }
    entries.resize(count);
    std::memcpy(entries.data(), host.base + p.theirs.where, bytes);
  }
  uint64_t left = p.theirs.sent;
  for (const auto& [where, bytes] : entries) {
    if (bytes == 0 || bytes > left) nonsense(m, peer, "list of runs");
    if (kind == Kind::shared && (where > host.bytes || host.bytes - where < bytes)) nonsense(m, peer, "run");
    left -= bytes;
    const auto* data = kind == Kind::shared ? host.base + where : reinterpret_cast<const std::byte*>(where);
    p.listed.push_back({peer, const_cast<std::byte*>(data), bytes});
  }
  if (left != 0) nonsense(m, peer, "list of runs");
  p.remote.runs = p.listed;
  p.in = Pair::In::pulling;
}

void Exchange::take_chunks(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  Peer& other = m.peer(peer);
  const RingShape& shape = m.ring_shape();
  auto& pipe = m.block().pipe(peer);
  const uint64_t with_line = p.theirs.first + std::min<uint64_t>(p.theirs.count, shape.chunks);
  uint64_t available = std::max(with_line, produced(other.block.pipe(m.rank())));
  available = std::min(available, p.in_next + shape.chunks);  // a peer's counter is no loop bound
  const std::byte* base = other.host->base + p.theirs.where;
  while (p.in_left > 0 && p.in_next < available) {
    const size_t bytes = std::min(p.in_left, shape.chunk_bytes);
    scatter(p.target, base + shape.offset(p.in_next), bytes, stores_);
    faultpoint("copy");
    p.in_left -= bytes;
    ++p.in_next;
    if (p.in_left > 0) publish_consumed(pipe, p.in_next);
  }
  if (p.in_left == 0) p.in = Pair::In::arrived;
}

// Why process_vm_readv failed. A peer that gave up may have unmapped its memory, or exited, since: then its own reason
// is the one to tell.
void Exchange::cannot_read(Membership& m, Rank peer, int error) {
  m.throw_if_aborted(peer);
  const std::string name = name_of(batch_.signature) + ": rank " + std::to_string(m.name(m.rank()));
  if (error == ESRCH || m.peer(peer).host->gone()) {
    m.peer(peer).host->lost.store(true, std::memory_order_relaxed);
    throw Error(Code::peer_lost, name + " lost " + m.describe(peer));
  }
  throw Error(Code::backend,
              name + " cannot read the memory of rank " + std::to_string(m.name(peer)) + ": " + std::strerror(error));
}

void Exchange::pull(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  const Neighbour& host = *m.peer(peer).host;
  const size_t step = std::min(p.in_left, kCopyStep);
  if (static_cast<Kind>(p.theirs.kind) == Kind::remote) {
    const ssize_t copied = copy_from_process(host.pid, p.remote, p.target, step);
    if (copied <= 0) cannot_read(m, peer, errno);
    p.in_left -= static_cast<size_t>(copied);
  } else {
    const ReadingGuard guard(m, peer);
    p.in_left -= copy(p.remote, p.target, step, stores_);
  }
  faultpoint("copy");
  if (p.in_left == 0) p.in = Pair::In::arrived;
}

// The pair is over: both sides see the same disagreement, so neither waits for the other's bytes.
void Exchange::disagree(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  if (static_cast<Kind>(p.theirs.kind) == Kind::refused) {
    const char* reason = m.peer(peer).block.words().refusal_text[number() % kSlots];
    quarrels_.push_back(name_of(batch_.signature) + ": rank " + std::to_string(m.name(peer)) +
                        " does not take part, its arguments were refused there: " + peer_text(reason));
  } else {
    quarrels_.push_back(
        disagreement(batch_.signature, batch_.unit_bytes, m.name(m.rank()), p.mine, m.name(peer), p.theirs));
  }
  give_up_pair(m, peer);
}

void Exchange::give_up_pair(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  if (p.out == Pair::Out::streaming) m.peer(peer).ring.end[number() % kSlots] = m.peer(peer).ring.produced;
  p.out = Pair::Out::settled;
  p.in = Pair::In::arrived;
}

void Exchange::look_for_pass(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  if (!posted_ || p.in != Pair::In::awaited || !m.finished(peer, number())) return;
  // The line stands until this rank has read it, so a peer that is done without one has never written it.
  if (is_published(m.peer(peer).block.line(number(), m.rank()), number())) return;
  const std::string name = name_of(batch_.signature), me = "rank " + std::to_string(m.name(m.rank()));
  if (!batch_.refusal.empty()) {
    throw Error(Code::aborted, name + ": " + me + " does not take part, its arguments were refused there: " +
                                   batch_.refusal + "; other ranks run it on a device already");
  }
  if (batch_.way != Way::compare) {
    quarrels_.push_back(name + ": rank " + std::to_string(m.name(peer)) + " runs it on a device without comparing, " +
                        me + " in " + to_string(batch_.signature.memory) + " memory");
  }
  give_up_pair(m, peer);  // that peer finds out itself whether it disagrees
}

std::string Exchange::quarrels() const {
  constexpr size_t kMost = 4;
  std::string text;
  for (size_t i = 0; i < std::min(quarrels_.size(), kMost); ++i) text += (i > 0 ? "; " : "") + quarrels_[i];
  if (quarrels_.size() > kMost) text += "; and with " + std::to_string(quarrels_.size() - kMost) + " ranks more";
  return text;
}

// An operation that is compared goes on only when no two ranks disagree: a rank that does not notice would run it
// without them. One that knows of a disagreement has nothing to wait for.
bool Exchange::heard_all(Membership& m) {
  if (batch_.way != Way::compare || !quarrels_.empty()) return true;
  for (Rank peer = 0; peer < m.size(); ++peer) {
    if (peer != m.rank() && !m.finished(peer, number())) return false;
  }
  for (Rank peer = 0; peer < m.size() && quarrels_.empty(); ++peer) {
    if (peer == m.rank()) continue;
    const auto& words = m.peer(peer).block.words();
    if (!has_quarrel(words, number())) continue;
    quarrels_.push_back(peer_text(words.quarrel_text[number() % kSlots]));
  }
  return true;
}

// ---- the end -------------------------------------------------------------------------------------------------------

void Exchange::finish(Membership& m) {
  for (Rank peer = 0; peer < m.size(); ++peer) {
    if (peer != m.rank()) m.throw_if_aborted(peer);
  }
  if (!quarrels_.empty()) error_.emplace(Code::mismatch, quarrels());
  for (std::byte* list : lists_) m.arena().release(list);
  lists_.clear();
  finished_.store(true, std::memory_order_release);
}

void Exchange::fail(Membership& m, const Error& error) {
  if (finished()) return;
  error_.emplace(error);
  for (std::byte* list : lists_) m.arena().release(list);
  finished_.store(true, std::memory_order_release);
}

bool Exchange::needs(Membership& m, Rank peer) const {
  if (!posted_) return m.peer(peer).done + kSlots < number();
  const Pair& p = pair(peer);
  if (p.out == Pair::Out::unacknowledged) return !m.finished(peer, number());
  if (p.out == Pair::Out::streaming || p.in == Pair::In::streaming) return true;
  if (p.in != Pair::In::awaited) return batch_.way == Way::compare && !m.finished(peer, number());
  return !is_published(m.peer(peer).block.line(number(), m.rank()), number());
}

std::string Exchange::missing(Membership& m) const {
  std::string text;
  for (Rank peer = 0; peer < m.size(); ++peer) {
    if (peer != m.rank() && needs(m, peer)) text += (text.empty() ? "" : "; ") + m.describe(peer);
  }
  return text;
}

}  // namespace a2a::shm
