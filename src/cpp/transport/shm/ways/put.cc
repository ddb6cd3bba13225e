#include <algorithm>
#include <cstring>

#include "runtime/faultpoint.h"
#include "transport/shm/copy/calibration.h"
#include "transport/shm/ways/run_list.h"
#include "transport/shm/ways/ways.h"

namespace a2a::shm::put {
namespace {

// Whether this rank puts and lets its peer put, rather than pull. An asynchronous operation does not: peers would have
// to wait for its puts while the program computes. Short pieces do not: each is stored by ordinary stores, which wait
// for every line of the peer's cache.
bool is_wanted(const Link& link) {
  constexpr size_t kLeastPiece = 4096;
  const Pair& p = link.pair;
  const Batch& batch = link.operation.batch;
  const Machine& machine = link.m.machine();
  if (batch.way != Way::exchange || batch.asynchronous || batch.at_most || link.operation.calculates()) return false;
  if (std::max(p.mine.sent, p.mine.expected) < direct_min(machine)) return false;
  if (!choose_put(link.operation.load, machine, string_puts_pay)) return false;
  const auto whole = [](const Cursor& at, size_t bytes) { return bytes >= kLeastPiece * at.runs.size(); };
  if (!whole(p.source, p.mine.sent) || !whole(p.target, p.mine.expected)) return false;
  return p.mine.sent == 0 || link.host().same_process || link.host().map_outputs();
}

}  // namespace

uint64_t invite(const Link& link) {
  const std::span<const Run> runs = link.pair.target.runs;
  const Kind kind = link.host().same_process ? Kind::pointer : Kind::shared;
  const auto in_reach = [&](const Run& run) {
    return run.strides == nullptr && (kind == Kind::pointer || link.m.arena().contains(run.data, run.bytes));
  };
  if (!is_wanted(link) || !std::ranges::all_of(runs, in_reach)) return kNoInvitation;
  if (runs.empty()) return invitation(0);
  if (runs.size() == 1) return invitation(place_of(link, runs[0], kind));
  ListedRun* const list = new_list(link, 1 + runs.size());
  ListedRun* entry = list;
  *entry++ = {0, runs.size()};
  for (const Run& run : runs) *entry++ = {place_of(link, run, kind), run.bytes};
  return invitation(place_of(link, list)) | kSeveral;
}

bool is_agreed(const Pair& pair) {
  const auto may_be = [](Kind kind, const Head& head) {
    return (kind == Kind::none || kind == Kind::shared || kind == Kind::pointer) && head.first != kNoInvitation;
  };
  return may_be(pair.kind(), pair.mine) && may_be(pair.their_kind(), pair.theirs);
}

void begin(const Link& link) {
  Pair& p = link.pair;
  LocalPeer& host = link.host();
  const Kind theirs = p.their_kind(), mine = p.kind();
  if ((theirs == Kind::none) != (p.in_left == 0) || (theirs == Kind::pointer && !host.same_process))
    link.nonsense("kind");
  p.in = p.in_left > 0 ? Pair::In::expecting : Pair::In::arrived;
  if (p.mine.sent == 0) return;
  const uint64_t where = invited_to(p.theirs.first);
  if ((p.theirs.first & kSeveral) != 0) {
    if (!host.reach(where, sizeof(ListedRun))) link.nonsense("list of runs");
    ListedRun count;
    std::memcpy(&count, host.base + where, sizeof count);
    find_runs(link, mine, where + sizeof count, count.bytes, p.mine.sent);
  } else {
    find_run(link, mine, {where, p.mine.sent});
  }
  if (mine == Kind::shared) {
    for (Run& run : p.listed) run.data = host.output(run.data, run.bytes);
  }
  p.out = Pair::Out::putting;
}

void take(const Link& link) {
  if (!link.peer_has_copied()) return;
  link.pair.in_left = 0;
  link.pair.in = Pair::In::arrived;
}

void send(const Link& link) {
  Pair& p = link.pair;
  {
    const CopyingGuard guard(link.m, link.peer);
    copy(p.source, p.remote, kStepBytes);
    faultpoint("put");
  }
  faultpoint("copy");
  if (!p.remote.at_end()) return;
  publish_copied(link.own_pipe(), link.step());
  p.out = Pair::Out::settled;
}

}  // namespace a2a::shm::put
