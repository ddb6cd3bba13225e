#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/faultpoint.h"
#include "transport/shm/ways/run_list.h"
#include "transport/shm/ways/ways.h"

namespace a2a::shm::pull {
namespace {

// Asks the peer for chunks, in this operation and all later ones. Bytes already received come again.
void ask_for_chunks(const Link& link) {
  Pair& p = link.pair;
  link.host().cma_from = false;
  p.again = p.theirs.sent - p.in_left;
  p.in_left = p.theirs.sent;
  p.target = {p.target.runs};
  p.read_left = {};
  shm::ask_for_chunks(link.own_pipe(), link.step());
  p.in = Pair::In::asking;
}

// Handles a failure of process_vm_readv. If the peer gave up, its memory may be unmapped: throws the peer's own reason.
// If it is gone, throws Error(peer_lost). If the peer's memory can be read, this rank's output is the cause. Otherwise
// the kernel does not let this rank read the memory: asks for chunks.
void cannot_read(const Link& link, int error) {
  LocalPeer& host = link.host();
  link.m.throw_if_aborted(link.peer);
  if (error == ESRCH || host.gone()) {
    host.lost.store(true, std::memory_order_relaxed);
    throw Error(Code::peer_lost, link.name() + " lost " + link.m.describe(link.peer));
  }
  if (error == EFAULT && can_read(host.pid, link.pair.remote.data())) {
    throw Error(Code::backend, link.name() + " cannot write into its own output: " + std::strerror(error));
  }
  ask_for_chunks(link);
}

// Ends the pair's receive, after its last copy.
void finish(const Link& link) {
  link.m.throw_if_aborted(link.peer);  // the peer may have reused that memory meanwhile
  publish_copied(link.own_pipe(), link.step());
  link.pair.in = Pair::In::arrived;
}

}  // namespace

void offer(const Link& link, Kind kind) {
  Pair& p = link.pair;
  Head& head = p.mine;
  const std::span<const Run> runs = p.source.runs;
  if (runs.data() != &link.operation.for_all) p.out = Pair::Out::unacknowledged;
  head.count = static_cast<uint32_t>(runs.size());
  if (has_gaps(runs)) {
    head.count |= kGaps;
    head.where = list_blocks(link, runs, kind);
    return;
  }
  if (runs.size() == 1) {
    head.where = place_of(link, runs[0], kind);
    return;
  }
  ListedRun* const list = new_list(link, runs.size());
  ListedRun* entry = list;
  for (const Run& run : runs) *entry++ = {place_of(link, run, kind), run.bytes};
  head.where = place_of(link, list);
}

bool settle(const Link& link) {
  Pair& p = link.pair;
  if (link.peer_has_copied()) {
    p.out = Pair::Out::settled;
    return true;
  }
  if (p.kind() != Kind::cma || !asks_for_chunks(link.their_pipe(), link.step())) return false;
  staged::replace_cma(link);
  return true;
}

void begin(const Link& link, Kind kind) {
  Pair& p = link.pair;
  if (kind == Kind::pointer && !link.host().same_process) link.nonsense("kind");
  if (kind == Kind::cma && !link.host().cma_from) return ask_for_chunks(link);
  if ((p.theirs.count & kGaps) != 0) {
    if (kind == Kind::cma || link.operation.calculates()) link.nonsense("kind");
    find_blocks(link, kind, p.theirs.where, p.theirs.count & ~kGaps, p.theirs.sent);
  } else if (p.theirs.count == 1) {
    find_run(link, kind, {p.theirs.where, p.theirs.sent});
  } else {
    find_runs(link, kind, p.theirs.where, p.theirs.count, p.theirs.sent);
  }
  p.in = Pair::In::pulling;
}

void take(const Link& link) {
  Pair& p = link.pair;
  const size_t step = std::min(p.in_left, kStepBytes);
  if (p.their_kind() == Kind::cma) {
    const ssize_t copied = cma_copy(link.host().pid, p.remote, p.target, step);
    if (copied <= 0) return cannot_read(link, errno);
    p.in_left -= static_cast<size_t>(copied);
  } else {
    const CopyingGuard guard(link.m, link.peer);
    p.in_left -= copy(p.remote, p.target, step, link.operation.stores);
  }
  faultpoint("copy");
  if (p.in_left == 0) finish(link);
}

void hear_answer(const Link& link) {
  if (!is_rewritten(link.their_pipe(), link.step())) return;
  Pair& p = link.pair;
  Head head;
  if (!observe(link.their_line(), link.step(), &head) || static_cast<Kind>(head.kind) != Kind::staged) {
    link.nonsense("kind");
  }
  p.theirs.kind = head.kind;
  p.theirs.where = head.where;
  p.theirs.first = head.first;
  p.theirs.count = head.count;
  staged::begin(link);
}

// With CMA, reads a part ahead; it stays in a cache until it is folded.
std::span<const std::byte> peek(const Link& link) {
  constexpr size_t kAhead = size_t{64} << 10;
  Pair& p = link.pair;
  if (p.their_kind() != Kind::cma) return {p.remote.data(), std::min(p.in_left, p.remote.contiguous())};
  if (!p.read_left.empty()) return p.read_left;
  p.read.resize(kAhead);
  const Run ahead{link.peer, p.read.data(), kAhead};
  Cursor to{{&ahead, 1}};
  const ssize_t copied = cma_copy(link.host().pid, p.remote, to, std::min(p.in_left, kAhead));
  if (copied <= 0) {
    cannot_read(link, errno);
    return {};
  }
  return p.read_left = {p.read.data(), static_cast<size_t>(copied)};
}

void consume(const Link& link, size_t bytes) {
  Pair& p = link.pair;
  p.in_left -= bytes;
  if (p.their_kind() == Kind::cma) {
    p.read_left = p.read_left.subspan(bytes);
  } else {
    p.remote.advance(bytes);
  }
  if (p.in_left == 0) finish(link);
}

}  // namespace a2a::shm::pull
