#include "transport/shm/exchange.h"

#include <algorithm>

#include "runtime/faultpoint.h"
#include "transport/shm/protocol/protocol.h"
#include "transport/shm/protocol/texts.h"

namespace a2a::shm {

Exchange::Exchange(std::shared_ptr<ShmProgress> progress, Rank rank, int size)
    : progress_(std::move(progress)), operation_(rank, size) {}

void Exchange::begin(Batch&& batch) {
  operation_.begin(std::move(batch));
  awaited_.clear();
  unsettled_.clear();
  disagreements_.clear();
  footprint_.reset();
  predecessors_.clear();
  error_.reset();
  own_waits_ = operation_.batch.own_last && operation_.own().in_left > kOwnBeside;
  packed_ = posted_ = received_ = false;
  finished_.store(false, std::memory_order_relaxed);
}

const Footprint& Exchange::footprint() {
  if (!footprint_) footprint_.emplace(footprint_of(operation_.batch));
  return *footprint_;
}

bool Exchange::may_begin() {
  if (!predecessors_.finished()) return false;
  if (!packed_) operation_.batch.pack();
  return packed_ = true;
}

bool Exchange::streaming(Membership& m) const {
  return std::ranges::any_of(unsettled_, [&](Rank peer) {
    const Pair& p = pair(peer);
    const bool cma = p.out == Pair::Out::unacknowledged && p.kind() == Kind::cma;
    return p.out == Pair::Out::streaming || (cma && !m.peer(peer).host->cma_to);
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
  if (rank == operation_.rank) return posted_ && own_copied();
  return pair(rank).in == Pair::In::arrived && agrees(rank) && fanned_out(rank);
}

// Requires that the peer's line has come.
bool Exchange::agrees(Rank peer) const {
  const Pair& p = pair(peer);
  return p.their_kind() != Kind::refused && agree(p.mine, p.theirs);
}

void Exchange::look_for_pass(Membership& m, Rank peer) {
  Pair& p = pair(peer);
  if (!posted_ || p.in != Pair::In::awaited || !m.finished(peer, step())) return;
  // The peer may not reuse a line before this rank has read it, so a peer that is done and shows no line never wrote
  // one.
  if (is_published(m.peer(peer).block.line(step(), m.rank()), step())) return;
  const std::string name = name_of(operation_.batch.signature), me = "rank " + std::to_string(m.name(m.rank()));
  if (!operation_.batch.refusal.empty()) {
    throw Error(Code::aborted, name + ": " + me + " does not take part, its arguments were refused there: " +
                                   operation_.batch.refusal + "; other ranks run it on a device already");
  }
  if (operation_.batch.way != Way::compare) {
    disagreements_.push_back(name + ": rank " + std::to_string(m.name(peer)) +
                             " runs it on a device without comparing, " + me + " in " +
                             to_string(operation_.batch.signature.memory) + " memory");
  }
  p.theirs = {};
  give_up_pair(Link(m, operation_, peer));  // the peer finds its disagreement itself
}

std::optional<bool> Exchange::any_flag() const {
  const auto unread = [this](Rank peer) { return pair(peer).in == Pair::In::awaited; };
  if (!posted_ || std::ranges::any_of(awaited_, unread)) return std::nullopt;
  bool any = operation_.batch.flag;
  for (Rank peer = 0; peer < static_cast<Rank>(operation_.pairs.size()); ++peer) {
    any |= peer != operation_.rank && (pair(peer).theirs.backlog & kFlag) != 0;
  }
  return any;
}

std::string Exchange::disagreements() const {
  constexpr size_t kMost = 4;
  std::string text;
  for (size_t i = 0; i < std::min(disagreements_.size(), kMost); ++i) text += (i > 0 ? "; " : "") + disagreements_[i];
  if (disagreements_.size() > kMost)
    text += "; and with " + std::to_string(disagreements_.size() - kMost) + " ranks more";
  return text;
}

// Whether all peers are known to agree or to disagree. A compared operation goes on only when no two ranks disagree: a
// rank that missed a disagreement would run it without them. A rank that knows of one need not wait.
bool Exchange::knows_all(Membership& m) {
  if (operation_.batch.way != Way::compare || !disagreements_.empty()) return true;
  for (Rank peer = 0; peer < m.size(); ++peer) {
    if (peer != m.rank() && !m.finished(peer, step())) return false;
  }
  for (Rank peer = 0; peer < m.size() && disagreements_.empty(); ++peer) {
    if (peer == m.rank()) continue;
    const auto& words = m.peer(peer).block.words();
    if (!has_disagreement(words, step())) continue;
    disagreements_.push_back(peer_text(words.disagreement_text[step() % kSlots]));
  }
  return true;
}

// Ends the operation. It fails if a peer gave up in it, not after it, even if all bytes of that peer have come. A
// disagreement takes precedence.
void Exchange::finish(Membership& m) {
  for (Rank peer = 0; peer < m.size() && disagreements_.empty(); ++peer) {
    if (peer == m.rank() || abort_of(m.peer(peer).block.words()) == 0) continue;
    if (!m.finished(peer, step())) m.throw_if_aborted(peer);
  }
  if (!disagreements_.empty()) error_.emplace(Code::mismatch, disagreements());
  operation_.batch.copy.reset();  // every peer has read it
  end(m);
}

void Exchange::end(Membership& m) {
  if (operation_.batch.last && m.status() != nullptr) {
    m.status()->end(operation_.batch.signature.number, error_ ? &*error_ : nullptr);
  }
  finished_.store(true, std::memory_order_release);
}

void Exchange::fail(Membership& m, const Error& error) {
  if (finished()) return;
  if (operation_.batch.last_look) look_once_more(m);
  predecessors_.clear();
  error_.emplace(error);
  end(m);
}

// Opens the lines that have come meanwhile. This rank has published its abort. A peer whose line is not there sees that
// abort and fails too: each of the two stores its own word and fences, in post_abort() and in wake_sleepers(), before
// it loads the other's.
void Exchange::look_once_more(Membership& m) {
  for (Rank peer = 0; peer < m.size(); ++peer) {
    if (peer == m.rank() || pair(peer).in != Pair::In::awaited) continue;
    try {
      const Link link(m, operation_, peer);
      if (read_line(link) && link.pair.in == Pair::In::inlined) take(link);
    } catch (const Error&) {  // the peer wrote an invalid line; there is an error already
    }
  }
}

bool Exchange::needs(Membership& m, Rank peer) const {
  if (!posted_) return m.peer(peer).done + kSlots < step();
  const Pair& p = pair(peer);
  if (p.out == Pair::Out::unacknowledged && !is_copied(m.peer(peer).block.pipe(m.rank()), step())) return true;
  if (p.out == Pair::Out::streaming || p.in == Pair::In::asking) return true;
  // In a fold or sum a peer's bytes may all have come long before they are taken.
  if (p.in == Pair::In::streaming) {
    const Peer& other = m.peer(peer);
    return !operation_.calculates() || !staged::holds_rest(p, other.chunks, other.block.pipe(m.rank()).handed);
  }
  if (p.in != Pair::In::awaited) return operation_.batch.way == Way::compare && !m.finished(peer, step());
  return !is_published(m.peer(peer).block.line(step(), m.rank()), step());
}

// Whether all bytes of the peer are here, and only its `done` is missing. It may be waiting for other ranks.
bool Exchange::only_unfinished(Rank peer) const {
  return posted_ && pair(peer).in == Pair::In::arrived && pair(peer).out != Pair::Out::streaming;
}

std::vector<Rank> Exchange::absent(Membership& m) const {
  std::vector<Rank> absent, unfinished;
  for (Rank peer = 0; peer < m.size(); ++peer) {
    if (peer != m.rank() && needs(m, peer)) (only_unfinished(peer) ? unfinished : absent).push_back(peer);
  }
  return absent.empty() ? unfinished : absent;
}

std::string Exchange::missing(Membership& m) const {
  if (const std::string earlier = predecessors_.describe(); !posted_ && !earlier.empty()) return earlier;
  const std::vector<Rank> absent = this->absent(m);
  std::vector<Rank> here;
  std::string text;
  for (const Rank peer : absent) text += (text.empty() ? "" : "; ") + m.describe(peer);
  if (absent.empty()) text = "its own copies";
  for (Rank peer = 0; peer < m.size(); ++peer) {
    if (peer != m.rank() && std::ranges::find(absent, peer) == absent.end()) here.push_back(m.name(peer));
  }
  return text + have_come(here);
}

}  // namespace a2a::shm
