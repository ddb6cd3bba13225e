// The receiving half of an exchange: what a peer's line says is compared, and the bytes are taken.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/faultpoint.h"
#include "transport/shm/exchange.h"
#include "transport/shm/protocol.h"
#include "transport/shm/texts.h"

namespace a2a::shm {
// Takes what has come from any peer. Returns whether anything moved. One peer's memory after the other's: who was read
// can go on.
bool Exchange::receive(Membership& m) {
  bool moved = false, pulling = false;
  std::erase_if(awaited_, [&](Rank peer) {
    const Pair& p = pair(peer);
    if (p.in == Pair::In::pulling && pulling) return false;
    if (p.in == Pair::In::awaited) {
      if (!open(m, peer)) return false;
      moved = true;
    }
    if (p.in != Pair::In::arrived) moved |= take(m, peer);
    pulling |= p.in == Pair::In::pulling;
    return p.in == Pair::In::arrived;
  });
  return moved;
}

// Takes what is there of a peer's bytes, once its line was seen. Returns whether anything was.
bool Exchange::take(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  const size_t before = p.in_left;
  const auto was = p.in;
  switch (p.in) {
    case Pair::In::streaming:
      take_chunks(m, peer);
      break;
    case Pair::In::asking:
      hear_answer(m, peer);
      break;
    case Pair::In::expecting:
      if (!has_copied(m, peer)) break;
      p.in_left = 0;
      p.in = Pair::In::arrived;
      break;
    default:
      pull(m, peer);
  }
  return p.in_left != before || p.in != was;
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
  if (is_put(peer)) {
    begin_put(m, peer);
    return true;
  }
  switch (kind) {
    case Kind::none:
      if (p.in_left != 0) m.nonsense(peer, "kind");
      p.in = Pair::In::arrived;
      break;
    case Kind::inlined:
      if (p.in_left > other.block.inline_bytes()) m.nonsense(peer, "kind");
      scatter(p.target, inline_payload(line), p.in_left);
      faultpoint("copy");
      p.in_left = 0;
      p.in = Pair::In::arrived;
      break;
    case Kind::staged:
      begin_taking(m, peer);
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
  if (kind == Kind::pointer && !host.same_process) m.nonsense(peer, "kind");
  if (kind == Kind::remote && !host.readable) return ask(m, peer);
  if (p.theirs.count == 1) {
    find_runs(m, peer, kind, {p.theirs.where, p.theirs.sent});
  } else {
    find_runs(m, peer, kind, p.theirs.where, p.theirs.count, p.theirs.sent);
  }
  p.in = Pair::In::pulling;
}

// Checks what a peer says of its memory before any of it is used.
void Exchange::find_runs(Membership& m, Rank peer, Kind kind, const ListedRun& run) {
  pair(peer).listed.clear();
  add_run(m, peer, kind, run);
  pair(peer).remote = {pair(peer).listed};
}

void Exchange::find_runs(Membership& m, Rank peer, Kind kind, uint64_t list, size_t count, uint64_t bytes) {
  Pair& p = pair(peer);
  Neighbour& host = *m.peer(peer).host;
  // No run is empty, so a list that is longer than the bytes is none; it could be as long as all memory.
  if (count == 0 || count > bytes || list % alignof(ListedRun) != 0 || count > host.bytes / sizeof(ListedRun) ||
      !host.reach(list, count * sizeof(ListedRun))) {
    m.nonsense(peer, "list of runs");
  }
  uint64_t left = bytes;
  p.listed.clear();
  for (size_t i = 0; i < count; ++i) {
    ListedRun run;
    std::memcpy(&run, host.base + list + i * sizeof run, sizeof run);
    if (run.bytes > left) m.nonsense(peer, "list of runs");
    left -= run.bytes;
    add_run(m, peer, kind, run);
  }
  if (left != 0) m.nonsense(peer, "list of runs");
  p.remote = {p.listed};
}

void Exchange::add_run(Membership& m, Rank peer, Kind kind, const ListedRun& run) {
  Neighbour& host = *m.peer(peer).host;
  if (run.bytes == 0 || (kind == Kind::shared && !host.reach(run.where, run.bytes))) m.nonsense(peer, "run");
  const auto* data = kind == Kind::shared ? host.base + run.where : reinterpret_cast<const std::byte*>(run.where);
  pair(peer).listed.push_back({peer, const_cast<std::byte*>(data), run.bytes});
}

void Exchange::begin_taking(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  Peer& other = m.peer(peer);
  Neighbour& host = *other.host;
  if (!host.reach_common(p.theirs.where, other.chunks.shape().share_bytes())) m.nonsense(peer, "share of the chunks");
  other.chunks.find(host.common + p.theirs.where);
  if (p.theirs.count > kListed || !other.chunks.skip_to(p.theirs.first)) m.nonsense(peer, "count of chunks");
  p.in = Pair::In::streaming;
}

// Takes what is there, or, where this rank has a CPU of its own, a few chunks for as many that it fills: while it takes
// one after the other and hands none over, the peer has nothing to do on its own CPU.
void Exchange::take_chunks(Membership& m, Rank peer) {
  constexpr int kMostTraded = 4;
  Pair& p = pair(peer);
  Chunks& chunks = m.peer(peer).chunks;
  const Flow& handed = m.peer(peer).block.pipe(m.rank()).handed;
  const bool with_line = p.theirs.count > 0;
  const uint64_t least = p.theirs.first + (with_line ? 1 : 0);
  for (int traded = 0; p.in_left > 0 && chunks.taken() < std::max(least, count_of(handed)); ++traded) {
    const bool first = with_line && chunks.taken() == p.theirs.first;
    const auto chunk = first ? static_cast<uint8_t>(p.theirs.count - 1) : listed(handed, chunks.taken());
    if (!chunks.is_theirs(chunk)) m.nonsense(peer, "chunk");
    const size_t bytes = std::min(p.in_left, chunks.shape().bytes);
    const bool trades = trade_chunks(m, peer, chunk);
    if (!trades) scatter(p.target, chunks.data(chunk), bytes, stores_);
    faultpoint("copy");
    p.in_left -= bytes;
    chunks.take(chunk, bytes);
    if (trades) publish_count(m.block().pipe(peer).handed, chunks.handed());
    share_out(m, peer);
    const bool in_turn = p.out == Pair::Out::streaming && !m.surroundings().oversubscribed();
    if (in_turn && (!trades || traded == kMostTraded)) break;
  }
  if (p.in_left == 0) p.in = Pair::In::arrived;
}

// Why process_vm_readv failed. A peer that gave up may have unmapped its memory, or exited, since: then its own reason
// is the one to tell. Where only the target cannot be written the fault is this rank's. Otherwise the peer has memory
// that the kernel does not show to others, or this rank may not read from it any more.
void Exchange::cannot_read(Membership& m, Rank peer, int error) {
  m.throw_if_aborted(peer);
  const std::string name = name_of(batch_.signature) + ": rank " + std::to_string(m.name(m.rank()));
  if (error == ESRCH || m.peer(peer).host->gone()) {
    m.peer(peer).host->lost.store(true, std::memory_order_relaxed);
    throw Error(Code::peer_lost, name + " lost " + m.describe(peer));
  }
  if (error == EFAULT && can_read(m.peer(peer).host->pid, pair(peer).remote.data())) {
    throw Error(Code::backend, name + " cannot write into its own output: " + std::strerror(error));
  }
  ask(m, peer);
}

// From now on this pair goes through chunks. What has come already comes again.
void Exchange::ask(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  m.peer(peer).host->readable = false;
  p.in_left = p.theirs.sent;
  p.target = {p.target.runs};
  ask_for_chunks(m.block().pipe(peer), number());
  p.in = Pair::In::asking;
}

void Exchange::hear_answer(Membership& m, Rank peer) {
  const Block& theirs = m.peer(peer).block;
  if (!is_rewritten(theirs.pipe(rank_), number())) return;
  Pair& p = pair(peer);
  Head head;
  if (!observe(theirs.line(number(), rank_), number(), &head) || static_cast<Kind>(head.kind) != Kind::staged) {
    m.nonsense(peer, "kind");
  }
  p.theirs.kind = head.kind;
  p.theirs.where = head.where;
  p.theirs.first = head.first;
  p.theirs.count = head.count;
  begin_taking(m, peer);
  take_chunks(m, peer);
}

// Copies what lies in this process's reach, and meanwhile this rank's own part, if some of it is left: what comes from
// another CPU's cache takes longer to arrive than to copy.
void Exchange::copy_beside_own(Pair& p, size_t bytes) {
  // Up to here it is faster to have all of it come first: 64 KiB take 6.2 us then, and 7.3 in turns.
  constexpr size_t kMostFetched = size_t{64} << 10;
  Pair& own = pair(rank_);
  const bool meanwhile = own.in_left > 0 && stores_ == Stores::cached && !own_in_place();
  const size_t beside = meanwhile ? std::min(own.in_left, bytes) : 0;
  own.in_left -= beside;
  p.in_left -= bytes;
  if (bytes <= kMostFetched) {
    copy_fetching(own.source, own.target, beside, p.remote);
    copy(p.remote, p.target, bytes, stores_);
  } else {
    copy_in_turns(p.remote, p.target, own.source, own.target, beside);
    copy(p.remote, p.target, bytes - beside, stores_);
  }
}

void Exchange::pull(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  const Neighbour& host = *m.peer(peer).host;
  const size_t step = std::min(p.in_left, kCopyStep);
  if (static_cast<Kind>(p.theirs.kind) == Kind::remote) {
    const ssize_t copied = copy_from_process(host.pid, p.remote, p.target, step);
    if (copied <= 0) return cannot_read(m, peer, errno);
    p.in_left -= static_cast<size_t>(copied);
  } else {
    const CopyingGuard guard(m, peer);
    copy_beside_own(p, step);
  }
  faultpoint("copy");
  if (p.in_left > 0) return;
  m.throw_if_aborted(peer);  // it may have used that memory again while this rank copied from it
  publish_copied(m.block().pipe(peer), number());
  p.in = Pair::In::arrived;
}

// The pair is over: both sides see the same disagreement, so neither waits for the other's bytes.
void Exchange::disagree(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  if (static_cast<Kind>(p.theirs.kind) == Kind::refused) {
    const char* reason = m.peer(peer).block.words().refusal_text[number() % kSlots];
    quarrels_.push_back(name_of(batch_.signature) + ": rank " + std::to_string(m.name(peer)) +
                        " does not take part, its arguments were refused there: " + peer_text(reason));
  } else {
    quarrels_.push_back(disagreement(batch_.signature, batch_.unit_bytes, m.name(m.rank()), facts_of(p.mine),
                                     m.name(peer), facts_of(p.theirs)));
  }
  give_up_pair(m, peer);
}

// What this rank has staged the peer will not touch: it gives the pair up as well.
void Exchange::give_up_pair(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  p.out = Pair::Out::settled;
  p.in = Pair::In::arrived;
  m.peer(peer).chunks.take_back(m.block().pipe(peer).handed, p.out_first, std::exchange(p.out_handed, 0));
}

}  // namespace a2a::shm
