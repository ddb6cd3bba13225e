// The middle of an exchange: reads and compares the peers' lines, and moves bytes.
#include <algorithm>

#include "runtime/faultpoint.h"
#include "transport/shm/exchange.h"
#include "transport/shm/protocol/texts.h"
#include "transport/shm/sinks/sinks.h"

namespace a2a::shm {

bool Exchange::advance(Membership& m) {
  const Batch& batch = operation_.batch;
  if (batch.way == Way::pass) {
    m.publish_finished(batch.signature);
    finish(m);
    return true;
  }
  bool moved = receive(m);
  std::erase_if(unsettled_, [&](Rank peer) {
    const Link link(m, operation_, peer);
    if (link.pair.out != Pair::Out::settled) moved |= send(link);
    return link.pair.out == Pair::Out::settled;
  });
  if (!moved && !own_copied() && !own_waits_ && !operation_.calculates()) {
    copy_own();
    moved = true;
  }
  if (awaited_.empty() && own_copied() && !received_) {
    received_ = moved = true;
    auto& words = m.block().words();
    if (batch.way == Way::compare && !disagreements_.empty()) {
      write_text(words.disagreement_text[step() % kSlots], disagreements());
      publish_disagreement(words, step());
    }
    faultpoint("acknowledge");
    const bool goes_on = !batch.last && disagreements_.empty();
    publish_done(words, goes_on ? step() : last_step(batch.signature.number));
    faultpoint("acknowledged");
  }
  if (moved) m.wake_sleepers();
  if (received_ && unsettled_.empty() && knows_all(m)) finish(m);
  return moved;
}

void Exchange::copy_own() {
  if (operation_.own().in_left > 0) return sinks::copy_own(operation_);
  operation_.batch.fan_out->step(operation_.rank);
}

// Takes what has come from the peers. Returns whether anything moved. Pulls from one peer at a time, so that a peer
// whose memory was read can go on.
bool Exchange::receive(Membership& m) {
  const bool copies = !operation_.calculates();
  bool moved = false, pulling = false;
  std::erase_if(awaited_, [&](Rank peer) {
    const Link link(m, operation_, peer);
    const Pair& p = link.pair;
    if (p.in == Pair::In::pulling && pulling) return false;
    moved |= open(link);
    if (copies && p.in != Pair::In::awaited && p.in != Pair::In::arrived) moved |= sinks::copy(link);
    pulling |= copies && p.in == Pair::In::pulling;
    if (p.in != Pair::In::arrived || fanned_out(peer) || !agrees(peer)) return p.in == Pair::In::arrived;
    moved = true;
    return operation_.batch.fan_out->step(peer);
  });
  return copies || !may_calculate() ? moved : calculate(m) || moved;
}

// A fold waits for all lines, so that it writes nothing before all ranks agree.
bool Exchange::may_calculate() const {
  const auto waits = [this](Rank peer) {
    return pair(peer).in == Pair::In::awaited || pair(peer).in == Pair::In::asking;
  };
  return operation_.summing || std::ranges::none_of(awaited_, waits);
}

// Folds or sums what has come. Bytes that are pulled need the guard. Staged bytes stay valid if their sender gives up.
bool Exchange::calculate(Membership& m) {
  const CopyingGuard guard(m);
  for (const Rank peer : awaited_) {
    if (pair(peer).in == Pair::In::pulling) m.throw_if_aborted(peer);
  }
  const sinks::Pairs pairs{m, operation_, awaited_};
  const auto sink = !disagreements_.empty() ? sinks::discard : operation_.summing ? sinks::sum : sinks::fold;
  const bool moved = sink(pairs);
  std::erase_if(awaited_, [this](Rank peer) { return pair(peer).in == Pair::In::arrived; });
  return moved;
}

// Looks for a line that has not come: the peer's first one, or that of chunks which this rank has asked for. Returns
// whether it has come.
bool Exchange::open(const Link& link) {
  if (link.pair.in == Pair::In::awaited) return read_line(link);
  if (link.pair.in != Pair::In::asking) return false;
  pull::read_rewritten_line(link);
  return link.pair.in != Pair::In::asking;
}

// Looks for the peer's line. If it has come, compares the facts and prepares to take the bytes. Returns whether it has
// come.
bool Exchange::read_line(const Link& link) {
  Pair& p = link.pair;
  const Batch& batch = operation_.batch;
  if (!observe(link.their_line(), step(), &p.theirs)) return false;
  learn_from_backlog(p.theirs, step(), &link.other.done);
  if (!batch.refusal.empty()) {
    p.in = Pair::In::arrived;  // all peers were told; their bytes no longer matter
    return true;
  }
  const bool fits = batch.at_most ? p.theirs.sent <= p.mine.expected : agree(p.mine, p.theirs);
  if (p.their_kind() == Kind::refused || !fits) {
    disagree(link);
    return true;
  }
  if (batch.at_most) p.in_left = p.theirs.sent;
  switch (p.their_kind()) {
    case Kind::none:
      if (p.in_left != 0) link.nonsense("kind");
      p.in = Pair::In::arrived;
      break;
    case Kind::inlined:
      inlined::begin(link);
      break;
    case Kind::staged:
      staged::begin(link);
      break;
    case Kind::shared:
    case Kind::pointer:
    case Kind::cma:
      pull::begin(link, p.their_kind());
      break;
    default:
      link.nonsense("kind");
  }
  return true;
}

// Stages a chunk, or looks for the acknowledgement. Returns whether anything moved.
bool Exchange::send(const Link& link) {
  return link.pair.out == Pair::Out::unacknowledged ? pull::settle(link) : staged::send(link);
}

// Ends the pair. Both sides find the same disagreement, so neither waits for the other's bytes.
void Exchange::disagree(const Link& link) {
  Membership& m = link.m;
  const Batch& batch = operation_.batch;
  const Pair& p = link.pair;
  const int name = m.name(link.peer);
  if (p.their_kind() == Kind::refused) {
    const char* reason = link.other.block.words().refusal_text[step() % kSlots];
    disagreements_.push_back(name_of(batch.signature) + ": rank " + std::to_string(name) +
                             " does not take part, its arguments were refused there: " + peer_text(reason));
  } else {
    const auto& unit = link.other.block.words().unit_bytes[step() % kSlots];
    disagreements_.push_back(disagreement(batch.signature, batch.unit_bytes, m.name(m.rank()), facts_of(p.mine), name,
                                          facts_of(p.theirs), unit.load(std::memory_order_relaxed)));
  }
  give_up_pair(link);
}

void Exchange::give_up_pair(const Link& link) {
  link.pair.out = Pair::Out::settled;
  link.pair.in = Pair::In::arrived;
  staged::give_up(link);
}

}  // namespace a2a::shm
