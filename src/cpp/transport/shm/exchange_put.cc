// One copy, made by the sender: two ranks that reach each other's outputs write their bytes there, where otherwise each
// reads from the other's input.
#include <algorithm>
#include <cstring>

#include "runtime/faultpoint.h"
#include "transport/shm/exchange.h"
#include "transport/shm/protocol.h"

namespace a2a::shm {

// Whether this rank makes and takes puts, rather than have either side copy from the other's memory. An operation that
// moves on while the program computes does not: its peers would have to wait for its puts. What is put in pieces of
// less is stored as any program does, and waits for each line to be called back.
bool Exchange::wants_puts(Membership& m, Rank peer) {
  constexpr size_t kLeastPiece = 4096;
  const Pair& p = pair(peer);
  if (batch_.way != Way::exchange || batch_.asynchronous || batch_.at_most) return false;
  if (std::max(p.mine.sent, p.mine.expected) < m.thresholds().direct()) return false;
  if (!m.thresholds().put(alike_ ? batch_.sends[0].bytes : sent_bytes_, received_bytes_)) return false;
  const auto whole = [](const Cursor& at, size_t bytes) { return bytes >= kLeastPiece * at.runs.size(); };
  if (!whole(p.source, p.mine.sent) || !whole(p.target, p.mine.expected)) return false;
  Neighbour& host = *m.peer(peer).host;
  return p.mine.sent == 0 || host.same_process || host.map_outputs();
}

// Where the peer may put its bytes, if it may.
uint64_t Exchange::invite(Membership& m, Rank peer) {
  const std::span<const Run> runs = pair(peer).target.runs;
  const bool by_address = m.peer(peer).host->same_process;
  const auto in_reach = [&](const Run& run) { return by_address || m.arena().contains(run.data, run.bytes); };
  if (!wants_puts(m, peer) || !std::ranges::all_of(runs, in_reach)) return kNoInvitation;
  const auto where = [&](const Run& run) {
    return by_address ? reinterpret_cast<uint64_t>(run.data) : m.arena().offset(run.data);
  };
  if (runs.empty()) return invitation(0);
  if (runs.size() == 1) return invitation(where(runs[0]));
  ListedRun* const list = new_list(m, 1 + runs.size());
  ListedRun* entry = list;
  *entry++ = {0, runs.size()};
  for (const Run& run : runs) *entry++ = {where(run), run.bytes};
  return invitation(m.arena().offset(reinterpret_cast<const std::byte*>(list))) | kSeveral;
}

// Whether each of the two puts its bytes into the other one's memory: both lines say so.
bool Exchange::is_put(Rank peer) const {
  const auto may_be = [](const Head& head) {
    const auto kind = static_cast<Kind>(head.kind);
    return (kind == Kind::none || kind == Kind::shared || kind == Kind::pointer) && head.first != kNoInvitation;
  };
  return may_be(pair(peer).mine) && may_be(pair(peer).theirs);
}

void Exchange::begin_put(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  Neighbour& host = *m.peer(peer).host;
  const auto kind = static_cast<Kind>(p.theirs.kind);
  if ((kind == Kind::none) != (p.in_left == 0) || (kind == Kind::pointer && !host.same_process))
    m.nonsense(peer, "kind");
  p.in = p.in_left > 0 ? Pair::In::expecting : Pair::In::arrived;
  if (p.mine.sent == 0) return;
  const uint64_t where = invited_to(p.theirs.first);
  const auto mine = static_cast<Kind>(p.mine.kind);
  if ((p.theirs.first & kSeveral) != 0) {
    if (!host.reach(where, sizeof(ListedRun))) m.nonsense(peer, "list of runs");
    ListedRun count;
    std::memcpy(&count, host.base + where, sizeof count);
    find_runs(m, peer, mine, where + sizeof count, count.bytes, p.mine.sent);
  } else {
    find_runs(m, peer, mine, {where, p.mine.sent});
  }
  if (mine == Kind::shared) {
    for (Run& run : p.listed) run.data = host.output(run.data, run.bytes);
  }
  p.out = Pair::Out::putting;
}

void Exchange::put(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  {
    const CopyingGuard guard(m, peer);
    copy(p.source, p.remote, kCopyStep);
    faultpoint("put");
  }
  faultpoint("copy");
  if (!p.remote.at_end()) return;
  publish_copied(m.block().pipe(peer), number());
  p.out = Pair::Out::settled;
}

}  // namespace a2a::shm
