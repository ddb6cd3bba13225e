// The middle of an exchange: reads and compares the peers' lines, and moves bytes.
#include <algorithm>

#include "runtime/faultpoint.h"
#include "transport/shm/exchange.h"
#include "transport/shm/protocol/texts.h"

namespace a2a::shm {

bool Exchange::advance(Membership& m) {
  const Batch& batch = operation_.batch;
  if (batch.way == Way::pass) {
    m.pass(batch.signature);
    finish(m);
    return true;
  }
  bool moved = operation_.folder ? fold(m) : operation_.summing ? sum(m) : receive(m);
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
    const bool goes_on = batch.half == Half::first && disagreements_.empty();
    publish_done(words, goes_on ? step() : last_step(batch.signature.number));
    faultpoint("acknowledged");
  }
  if (moved) m.wake_sleepers();
  if (received_ && unsettled_.empty() && heard_all(m)) finish(m);
  return moved;
}

// Copies a part of what this rank sends to itself, or all of it if it stays in place.
void Exchange::copy_own() {
  constexpr size_t kStep = size_t{512} << 10;
  Pair& own = operation_.own();
  if (operation_.own_in_place()) {
    copy_self(operation_.batch.sends, operation_.batch.recvs, operation_.rank);
    own.in_left = 0;
  } else {
    own.in_left -= copy(own.source, own.target, std::min(own.in_left, kStep), operation_.stores);
  }
}

// Takes what has come from the peers. Returns whether anything moved. Pulls from one peer at a time, so that a peer
// whose memory was read can go on.
bool Exchange::receive(Membership& m) {
  bool moved = false, pulling = false;
  std::erase_if(awaited_, [&](Rank peer) {
    const Link link(m, operation_, peer);
    const Pair& p = link.pair;
    if (p.in == Pair::In::pulling && pulling) return false;
    if (p.in == Pair::In::awaited) {
      if (!open(link)) return false;
      moved = true;
    }
    if (p.in != Pair::In::arrived) moved |= take(link);
    pulling |= p.in == Pair::In::pulling;
    return p.in == Pair::In::arrived;
  });
  return moved;
}

// For folds and sums: looks for lines that have not come, and for chunks that this rank has asked for.
bool Exchange::open_all(Membership& m) {
  bool moved = false;
  for (const Rank peer : awaited_) {
    const Link link(m, operation_, peer);
    const auto was = link.pair.in;
    if (was == Pair::In::awaited) open(link);
    if (was == Pair::In::asking) pull::hear_answer(link);
    moved |= link.pair.in != was;
  }
  return moved;
}

// Throws when a peer that this rank pulls from has given up, as CopyingGuard requires for several peers.
void Exchange::throw_if_pulled_from_aborted(Membership& m) const {
  for (const Rank peer : awaited_) {
    if (pair(peer).in == Pair::In::pulling) m.throw_if_aborted(peer);
  }
}

// Looks for the peer's line. If it has come, compares the facts and prepares to take the bytes. Returns whether it has
// come.
bool Exchange::open(const Link& link) {
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
  if (put::is_agreed(p)) {
    put::begin(link);
    return true;
  }
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

// Takes what has come of a peer's bytes, once its line was read. Returns whether anything moved.
bool Exchange::take(const Link& link) {
  Pair& p = link.pair;
  const size_t before = p.in_left;
  const auto was = p.in;
  switch (p.in) {
    case Pair::In::inlined:
      inlined::take(link);
      break;
    case Pair::In::streaming:
      staged::take(link);
      break;
    case Pair::In::asking:
      pull::hear_answer(link);
      break;
    case Pair::In::expecting:
      if (!link.peer_has_copied()) break;
      p.in_left = 0;
      p.in = Pair::In::arrived;
      break;
    default:
      pull::take(link);
  }
  return p.in_left != before || p.in != was;
}

// Stages a chunk, puts bytes into the peer's memory, or looks for the acknowledgement. Returns whether anything moved.
bool Exchange::send(const Link& link) {
  switch (link.pair.out) {
    case Pair::Out::unacknowledged:
      return pull::settle(link);
    case Pair::Out::putting:
      put::send(link);
      return true;
    default:
      return staged::send(link);
  }
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
