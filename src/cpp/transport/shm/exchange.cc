#include "transport/shm/exchange.h"

#include <algorithm>

#include "runtime/faultpoint.h"
#include "transport/shm/protocol.h"
#include "transport/shm/texts.h"

namespace a2a::shm {

Exchange::Exchange(std::shared_ptr<ShmProgress> progress, Rank rank, int size)
    : progress_(std::move(progress)), rank_(rank), pairs_(static_cast<size_t>(size)) {}

void Exchange::begin(Batch&& batch) {
  batch_.swap(batch);
  awaited_.clear();
  unsettled_.clear();
  quarrels_.clear();
  error_.reset();
  sent_bytes_ = batch_.sent_elsewhere;
  received_bytes_ = batch_.received_elsewhere;
  for_all_ = {};
  all_present_.reset();
  lists_ = 0;
  posted_ = received_ = false;
  finished_.store(false, std::memory_order_relaxed);
  Head common{};
  set_common(common, batch_.signature);
  std::span<const Run> all_sends = batch_.sends, all_recvs = batch_.recvs;
  Rank peer = 0;
  for (Pair& p : pairs_) {
    const auto sends = take_runs(all_sends, peer), recvs = take_runs(all_recvs, peer++);
    p.begin(common, sends, recvs);
    if (batch_.way != Way::exchange) continue;
    p.in_left = p.mine.expected;
    sent_bytes_ += p.mine.sent;
    received_bytes_ += p.mine.expected;
  }
  // Of its part to itself this rank knows already whether it is less than there is room for (at_most).
  Pair& own = pair(rank_);
  own.in_left = std::min(own.in_left, own.mine.sent);
  own_waits_ = batch_.own_last && own.in_left > kOwnBeside;
}

bool Exchange::streaming(Membership& m) const {
  return std::ranges::any_of(unsettled_, [&](Rank peer) {
    const Pair& p = pair(peer);
    const bool remote = p.out == Pair::Out::unacknowledged && static_cast<Kind>(p.mine.kind) == Kind::remote;
    return p.out == Pair::Out::streaming || (remote && !m.peer(peer).host->reads_us);
  });
}

bool Exchange::done() {
  progress_->refuse_if_inherited();
  if (!finished()) progress_->poll();
  return finished();
}

bool Exchange::wait_until(Deadline deadline) {
  progress_->refuse_if_inherited();
  if (!finished() && !progress_->wait([this] { return finished(); }, deadline)) return false;
  if (error_) throw *error_;
  return true;
}

bool Exchange::wait_briefly() {
  progress_->refuse_if_inherited();
  if (!finished() && !progress_->wait_briefly([this] { return finished(); })) return false;
  if (error_) throw *error_;
  return true;
}

bool Exchange::arrived(Rank rank) {
  progress_->refuse_if_inherited();
  if (finished()) return !error_;
  progress_->poll();
  std::lock_guard lock(progress_->mutex());
  if (finished()) return !error_;
  if (rank == rank_) return posted_ && own_copied();
  const Pair& p = pair(rank);
  return p.in == Pair::In::arrived && static_cast<Kind>(p.theirs.kind) != Kind::refused && agree(p.mine, p.theirs);
}

bool Exchange::advance(Membership& m) {
  if (batch_.way == Way::pass) {
    m.pass(batch_.signature);
    finish(m);
    return true;
  }
  bool moved = receive(m);
  std::erase_if(unsettled_, [&](Rank peer) {
    if (pair(peer).out != Pair::Out::settled) moved |= stage(m, peer);
    return pair(peer).out == Pair::Out::settled;
  });
  if (!moved && !own_copied() && !own_waits_) {
    copy_own();
    moved = true;
  }
  if (awaited_.empty() && own_copied() && !received_) {
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
  p.theirs = {};
  give_up_pair(m, peer);  // that peer finds out itself whether it disagrees
}

std::optional<bool> Exchange::remarked() const {
  const auto unread = [this](Rank peer) { return pair(peer).in == Pair::In::awaited; };
  if (!posted_ || std::ranges::any_of(awaited_, unread)) return std::nullopt;
  bool any = batch_.remark;
  for (Rank peer = 0; peer < static_cast<Rank>(pairs_.size()); ++peer) {
    any |= peer != rank_ && (pair(peer).theirs.backlog & kRemark) != 0;
  }
  return any;
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

// A peer that gave up in this operation, not after it, has it fail here as well, although all its bytes may have come.
// A disagreement stands whatever came after it.
void Exchange::finish(Membership& m) {
  for (Rank peer = 0; peer < m.size() && quarrels_.empty(); ++peer) {
    if (peer == m.rank() || abort_of(m.peer(peer).block.words()) == 0) continue;
    if (!m.finished(peer, number())) m.throw_if_aborted(peer);
  }
  if (!quarrels_.empty()) error_.emplace(Code::mismatch, quarrels());
  finished_.store(true, std::memory_order_release);
}

void Exchange::fail(Membership& m, const Error& error) {
  if (finished()) return;
  if (batch_.last_look) look_once_more(m);
  error_.emplace(error);
  finished_.store(true, std::memory_order_release);
}

// This rank has told its peers that it gives up. One whose line is not there yet will see that and fail too, because
// each of the two stores its own word and fences, in post_abort() and in wake_sleepers(), before it looks at the
// other's.
void Exchange::look_once_more(Membership& m) {
  for (Rank peer = 0; peer < m.size(); ++peer) {
    if (peer == m.rank() || pair(peer).in != Pair::In::awaited) continue;
    try {
      open(m, peer);
    } catch (const Error&) {  // what this one wrote is nonsense; there is an error already
    }
  }
}

bool Exchange::needs(Membership& m, Rank peer) const {
  if (!posted_) return m.peer(peer).done + kSlots < number();
  const Pair& p = pair(peer);
  const bool copies = p.out == Pair::Out::unacknowledged || p.in == Pair::In::expecting;
  if (copies && !has_copied(m, peer)) return true;
  if (p.out == Pair::Out::streaming || p.in == Pair::In::streaming || p.in == Pair::In::asking) return true;
  if (p.in != Pair::In::awaited) return batch_.way == Way::compare && !m.finished(peer, number());
  return !is_published(m.peer(peer).block.line(number(), m.rank()), number());
}

// Whether the peer has made all its copies from or to this rank's memory.
bool Exchange::has_copied(Membership& m, Rank peer) const {
  return is_copied(m.peer(peer).block.pipe(rank_), number());
}

// Of a rank whose bytes are all here only the word is wanted that it has finished. It may be waiting for the others.
bool Exchange::only_unfinished(Rank peer) const {
  return posted_ && pair(peer).in == Pair::In::arrived && pair(peer).out != Pair::Out::streaming;
}

std::string Exchange::missing(Membership& m) const {
  std::vector<Rank> absent, unfinished, here;
  for (Rank peer = 0; peer < m.size(); ++peer) {
    if (peer == m.rank()) continue;
    (!needs(m, peer) ? here : only_unfinished(peer) ? unfinished : absent).push_back(peer);
  }
  if (absent.empty()) absent.swap(unfinished);
  here.insert(here.end(), unfinished.begin(), unfinished.end());
  std::ranges::sort(here);
  std::string text;
  for (const Rank peer : absent) text += (text.empty() ? "" : "; ") + m.describe(peer);
  if (absent.empty()) text = "its own copies";
  for (Rank& peer : here) peer = m.name(peer);
  return text + have_come(here);
}

}  // namespace a2a::shm
