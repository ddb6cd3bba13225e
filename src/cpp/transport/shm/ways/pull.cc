#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/faultpoint.h"
#include "transport/shm/ways/run_list.h"
#include "transport/shm/ways/ways.h"

namespace a2a::shm::pull {
namespace {

// Asks the peer to send copies, from now on. Bytes already received come again.
void ask_for_copies(const Source& from) {
  Pair& p = from.pair;
  from.host().cma_from = false;
  p.again = p.theirs.sent - p.in_left;
  p.in_left = p.theirs.sent;
  p.target = {p.target.runs};
  p.here = {};
  p.in = Pair::In::asking;
  from.transfer.ask_for_copies(from);
}

// Handles a failure of process_vm_readv. If the peer gave up, its memory may be unmapped: throws the peer's own reason.
// If it is gone, throws Error(peer_lost). If the peer's memory can be read, this rank's output is the cause. Otherwise
// the kernel does not let this rank read the memory: asks for copies.
void cannot_read(const Source& from, int error) {
  LocalPeer& host = from.host();
  from.m.throw_if_aborted(from.peer);
  if (error == ESRCH || host.gone()) {
    host.lost.store(true, std::memory_order_relaxed);
    throw Error(Code::peer_lost, from.name() + " lost " + from.m.describe(from.peer));
  }
  if (error == EFAULT && can_read(host.pid, from.pair.remote.data())) {
    throw Error(Code::backend, from.name() + " cannot write into its own output: " + std::strerror(error));
  }
  ask_for_copies(from);
}

// Ends the pair's receive, after its last copy.
void finish(const Source& from) {
  from.m.throw_if_aborted(from.peer);  // the peer may have reused that memory meanwhile
  from.pair.in = Pair::In::arrived;
  from.transfer.acknowledge(from);
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

void stop_cma(LocalPeer& reader, const Cursor& source, const std::string& name) {
  reader.cma_to = false;
  if (!can_be_read(source)) {
    throw Error(Code::backend, name + " cannot read its own input: " + std::strerror(EFAULT));
  }
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

void begin(const Source& from, Kind kind) {
  Pair& p = from.pair;
  if (kind == Kind::pointer && !from.host().same_process) from.nonsense("kind");
  if (kind == Kind::cma && !from.host().cma_from) return ask_for_copies(from);
  if ((p.theirs.count & kGaps) != 0) {
    if (kind == Kind::cma || from.transfer.calculates()) from.nonsense("kind");
    find_blocks(from, kind, p.theirs.where, p.theirs.count & ~kGaps, p.theirs.sent);
  } else if (p.theirs.count == 1) {
    find_run(from, kind, {p.theirs.where, p.theirs.sent});
  } else {
    find_runs(from, kind, p.theirs.where, p.theirs.count, p.theirs.sent);
  }
  p.in = Pair::In::pulling;
}

void take(const Source& from) {
  Pair& p = from.pair;
  const size_t step = std::min(p.in_left, kStepBytes);
  if (p.their_kind() == Kind::cma) {
    const ssize_t copied = cma_copy(from.host().pid, p.remote, p.target, step);
    if (copied <= 0) return cannot_read(from, errno);
    p.in_left -= static_cast<size_t>(copied);
  } else {
    const CopyingGuard guard(from.m, from.peer);
    p.in_left -= copy(p.remote, p.target, step, from.transfer.stores);
  }
  faultpoint("copy");
  if (p.in_left == 0) finish(from);
}

void read_rewritten_line(const Link& link) {
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
std::span<const std::byte> peek(const Source& from) {
  constexpr size_t kAhead = size_t{64} << 10;
  Pair& p = from.pair;
  if (p.their_kind() != Kind::cma) return {p.remote.data(), std::min(p.in_left, p.remote.contiguous())};
  if (!p.here.empty()) return p.here;
  p.read.resize(kAhead);
  const Run ahead{from.peer, p.read.data(), kAhead};
  Cursor to{{&ahead, 1}};
  const ssize_t copied = cma_copy(from.host().pid, p.remote, to, std::min(p.in_left, kAhead));
  if (copied <= 0) {
    cannot_read(from, errno);
    return {};
  }
  return p.here = {p.read.data(), static_cast<size_t>(copied)};
}

void consume(const Source& from, size_t bytes) {
  Pair& p = from.pair;
  p.in_left -= bytes;
  if (p.their_kind() == Kind::cma) {
    p.here = p.here.subspan(bytes);
  } else {
    p.remote.advance(bytes);
  }
  if (p.in_left == 0) finish(from);
}

}  // namespace a2a::shm::pull
