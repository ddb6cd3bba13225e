// Breaks the transport when a peer gives up, leaves or dies, or a deadline passes.
#include <algorithm>
#include <limits>
#include <ranges>

#include "transport/shm/protocol/protocol.h"
#include "transport/shm/protocol/texts.h"
#include "transport/shm/shm_transport.h"

namespace a2a::shm {

void ShmTransport::show_in(std::shared_ptr<Status> status) {
  std::lock_guard lock(membership_.progress().mutex());
  if (status != nullptr) status->belongs_to(&membership_.progress());
  membership_.show_in(std::move(status));
}

std::vector<Rank> ShmTransport::awaited() {
  std::vector<Rank> ranks;
  if (!queue_.empty()) ranks = queue_.front()->absent(membership_);
  for (Rank& rank : ranks) rank = membership_.name(rank);
  return ranks;
}

// Shows for whom this rank waits.
void ShmTransport::show_waits() {
  Status* const status = membership_.status().get();
  if (status == nullptr || broken_) return;
  if (!queue_.empty()) status->wait(queue_.front()->batch().signature.number, awaited());
  if (const Message* const message = waiting_message()) status->wait(*message);
}

void ShmTransport::check(Deadline::Clock::time_point now, bool ask_kernel) {
  if (ask_kernel) show_waits();
  check_messages(now, ask_kernel);
  if (queue_.empty()) return;
  for (size_t i = 0; i < queue_.size() && !broken_; ++i) {
    if (queue_[i]->batch().deadline.passed(now)) expire(*queue_[i]);
  }
  for (Rank peer = 0; peer < size() && !broken_; ++peer) {
    if (peer != membership_.rank()) check_peer(peer, ask_kernel);
  }
}

void ShmTransport::check_peer(Rank peer, bool ask_kernel) {
  Peer& p = membership_.peer(peer);
  const auto& words = p.block.words();
  // All that a rank wrote before it gave up or left is visible, and so is what others wrote before that. Take that
  // first; only what is missing then is lost.
  if (abort_of(words) != 0) take_what_came();
  if (broken_ || queue_.empty()) return;
  try {
    membership_.throw_if_aborted(peer);
    queue_.front()->look_for_pass(membership_, peer);
  } catch (const Error& error) {
    return break_with(error);
  }
  const Left left = left_of(words);
  const bool gone = ask_kernel ? p.host->gone() : p.host->lost.load(std::memory_order_relaxed);
  if (left == Left::no && !gone) return;
  take_what_came();
  if (broken_ || queue_.empty() || !queue_.front()->needs(membership_, peer)) return;
  // A rank that has left may have lost another one. If it said so, its error is passed on; otherwise the ranks that are
  // gone are named.
  if (const auto error = given_up()) return break_with(*error);
  std::string how = " lost ", whom;
  for (Rank other = 0; other < size(); ++other) {
    if (other == membership_.rank() || !membership_.peer(other).host->gone()) continue;
    if (queue_.front()->needs(membership_, other)) whom += (whom.empty() ? "" : "; ") + membership_.describe(other);
  }
  if (whom.empty() && left == Left::replaced) {
    return break_with(left_error(name_of(queue_.front()->batch().signature), peer));
  }
  if (whom.empty()) {
    how = std::string(" waits for a rank that has ") + (left == Left::closed ? "closed" : "left") +
          " this communicator: ";
    whom = membership_.describe(peer);
  }
  break_with(Error(Code::peer_lost, name_of(queue_.front()->batch().signature) + ": rank " +
                                        std::to_string(membership_.name(membership_.rank())) + how + whom));
}

void ShmTransport::check_messages(Deadline::Clock::time_point now, bool ask_kernel) {
  if (!messages_ || !messages_->busy() || broken_) return;
  if (const auto late = messages_->expired(now)) {
    const Rank peer = late->message().peer;
    const Rank here = peer == kAnySource ? membership_.rank() : membership_.rank_named(peer);
    const std::string whom = here == membership_.rank() ? "it" : membership_.describe(here);
    return break_with(Error(Code::timeout, name_of(late->message()) + ": timeout on rank " +
                                               std::to_string(membership_.name(membership_.rank())) +
                                               ", which still waits for " + whom + advice()));
  }
  for (Rank peer = 0; peer < size() && !broken_; ++peer) {
    if (peer != membership_.rank()) check_messages_with(peer, ask_kernel);
  }
}

// Messages that a rank wrote before it gave up, left or died are valid.
void ShmTransport::check_messages_with(Rank peer, bool ask_kernel) {
  Peer& p = membership_.peer(peer);
  const bool gone = ask_kernel ? p.host->gone() : p.host->lost.load(std::memory_order_relaxed);
  const Left left = left_of(p.block.words());
  if (left == Left::no && !gone && abort_of(p.block.words()) == 0) return;
  while (!broken_ && guarded([this] { return messages_->advance(); })) continue;
  if (broken_ || !messages_->busy()) return;
  try {
    membership_.throw_if_aborted(peer);
  } catch (const Error& error) {
    return break_with(error);
  }
  const bool anybody = left == Left::no || (!other_hosts_ && deserted());
  const auto work = messages_->needing(peer, anybody);
  if (work == nullptr) return;
  if (left == Left::replaced) return break_with(left_error(name_of(work->message()), peer));
  break_with(Error(Code::peer_lost, name_of(work->message()) + ": rank " +
                                        std::to_string(membership_.name(membership_.rank())) +
                                        (left == Left::no ? " lost " : " waits for a rank that has left: ") +
                                        membership_.describe(peer)));
}

Error ShmTransport::left_error(const std::string& what, Rank peer) {
  return {Code::aborted, what + ": " + peer_text(membership_.peer(peer).block.words().abort_text)};
}

bool ShmTransport::deserted() {
  const auto is_there = [this](Rank other) {
    return other != membership_.rank() && left_of(membership_.peer(other).block.words()) == Left::no;
  };
  if (std::ranges::any_of(std::views::iota(Rank{0}, static_cast<Rank>(size())), is_there)) return false;
  while (messages_ && !broken_ && guarded([this] { return messages_->advance(); })) continue;
  return true;
}

void ShmTransport::expire(Exchange& exchange) {
  break_with(Error(Code::timeout, name_of(exchange.batch().signature) + ": timeout on rank " +
                                      std::to_string(membership_.name(membership_.rank())) +
                                      ", which still waits for " + queue_.front()->missing(membership_) + advice()));
}

std::string ShmTransport::advice() {
  std::string text;
  if (!reads_everywhere() && !membership_.progress().is_served()) {
    text =
        "; these ranks may not read each other's memory (process_vm_readv, A2A_SHM_CMA), so that large data moves only "
        "while its sender waits for an operation, too, or with A2A_PROGRESS_THREAD=1";
  }
  return text + advice_on_timeout();
}

std::optional<Error> ShmTransport::given_up() {
  try {
    for (Rank peer = 0; peer < size(); ++peer) {
      if (peer != membership_.rank()) membership_.throw_if_aborted(peer);
    }
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

// Breaks the communicator if a peer gave up. First takes what the peer sent before, which is valid.
void ShmTransport::break_if_aborted() {
  if (broken_) return;
  const auto error = given_up();
  if (!error) return;
  take_what_came();
  break_with(*error);
}

std::optional<Error> ShmTransport::lost_peer() {
  std::lock_guard lock(membership_.progress().mutex());
  break_if_aborted();
  return broken_ ? std::nullopt : find_lost(std::numeric_limits<uint64_t>::max());
}

// A peer that has finished step `needed` may be gone: its part is complete.
std::optional<Error> ShmTransport::find_lost(uint64_t needed) {
  const auto now = Deadline::Clock::now();
  const bool ask_kernel = now - asked_ >= kFresh;
  if (ask_kernel) asked_ = now;
  for (Rank peer = 0; peer < size(); ++peer) {
    if (peer == membership_.rank()) continue;
    const Peer& p = membership_.peer(peer);
    const Left left = left_of(p.block.words());
    const bool gone = ask_kernel ? p.host->gone() : p.host->lost.load(std::memory_order_relaxed);
    if ((left == Left::no && !gone) || membership_.finished(peer, needed)) continue;
    if (left == Left::replaced) return left_error("the group of this communicator", peer);
    return Error(Code::peer_lost, "rank " + std::to_string(membership_.name(membership_.rank())) +
                                      (left == Left::no ? " lost " : " waits for a rank that has left: ") +
                                      membership_.describe(peer));
  }
  return std::nullopt;
}

bool ShmTransport::peer_died() {
  std::lock_guard lock(membership_.progress().mutex());
  return has_dead_peer();
}

bool ShmTransport::has_dead_peer() {
  for (Rank peer = 0; peer < size(); ++peer) {
    if (peer == membership_.rank() || left_of(membership_.peer(peer).block.words()) != Left::no) continue;
    if (membership_.peer(peer).host->gone()) return true;
  }
  return false;
}

std::string ShmTransport::whereabouts() {
  std::lock_guard lock(membership_.progress().mutex());
  std::string text;
  for (Rank peer = 0; peer < size(); ++peer) {
    if (peer != membership_.rank()) text += (text.empty() ? "" : "; ") + membership_.describe(peer);
  }
  return text;
}

std::optional<Error> ShmTransport::broken() {
  std::lock_guard lock(membership_.progress().mutex());
  break_if_aborted();
  return broken_;
}

bool ShmTransport::failed() {
  std::lock_guard lock(membership_.progress().mutex());
  return broken_.has_value();
}

}  // namespace a2a::shm
