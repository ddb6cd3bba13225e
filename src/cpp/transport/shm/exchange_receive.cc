// The receiving half of an exchange: what a peer's line says is compared, and the bytes are taken.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/shm/exchange.h"
#include "transport/shm/faultpoint.h"
#include "transport/shm/protocol.h"

namespace a2a::shm {
namespace {

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

}  // namespace

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
  const bool fits = batch_.at_most ? p.theirs.sent <= p.mine.expected : agree(p.mine, p.theirs);
  if (kind == Kind::refused || !fits) {
    disagree(m, peer);
    return true;
  }
  if (batch_.at_most) p.in_left = p.theirs.sent;
  switch (kind) {
    case Kind::none:
      if (p.in_left != 0) m.nonsense(peer, "kind");
      p.in = Pair::In::arrived;
      break;
    case Kind::inlined:
      if (p.in_left > kInlineBytes) m.nonsense(peer, "kind");
      scatter(p.target, inline_payload(line), p.in_left);
      faultpoint("copy");
      p.in_left = 0;
      p.in = Pair::In::arrived;
      break;
    case Kind::ring:
      if (p.theirs.where > other.host->bytes || other.host->bytes - p.theirs.where < m.ring_shape().bytes()) {
        m.nonsense(peer, "ring");
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
      m.nonsense(peer, "kind");
  }
  return true;
}

void Exchange::begin_pull(Membership& m, Rank peer, Kind kind) {
  Pair& p = pair(peer);
  const Neighbour& host = *m.peer(peer).host;
  if ((kind == Kind::pointer && !host.same_process) || (kind == Kind::remote && !host.readable))
    m.nonsense(peer, "kind");
  const size_t count = p.theirs.count;
  std::vector<ListedRun> entries(1, {p.theirs.where, p.theirs.sent});
  if (count != 1) {
    const size_t bytes = count * sizeof(ListedRun);
    // No run is empty, so a list that is longer than the bytes is none; it could be as long as all memory.
    if (count == 0 || count > p.theirs.sent || p.theirs.where % alignof(ListedRun) != 0 ||
        p.theirs.where > host.bytes || host.bytes - p.theirs.where < bytes) {
      m.nonsense(peer, "list of runs");
    }
    entries.resize(count);
    std::memcpy(entries.data(), host.base + p.theirs.where, bytes);
  }
  uint64_t left = p.theirs.sent;
  for (const auto& [where, bytes] : entries) {
    if (bytes == 0 || bytes > left) m.nonsense(peer, "list of runs");
    if (kind == Kind::shared && (where > host.bytes || host.bytes - where < bytes)) m.nonsense(peer, "run");
    left -= bytes;
    const auto* data = kind == Kind::shared ? host.base + where : reinterpret_cast<const std::byte*>(where);
    p.listed.push_back({peer, const_cast<std::byte*>(data), bytes});
  }
  if (left != 0) m.nonsense(peer, "list of runs");
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

}  // namespace a2a::shm
