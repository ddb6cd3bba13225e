// The transfers of a RemoteExchange, from memory to memory.
#include <algorithm>
#include <ranges>
#include <utility>

#include "core/send_order.h"
#include "transport/hosts/pieces.h"
#include "transport/hosts/remote_exchange.h"
#include "transport/hosts/runs.h"

namespace a2a::hosts {
namespace {

bool done(std::unique_ptr<Transfer>& transfer) {
  if (transfer != nullptr && transfer->done()) transfer.reset();
  return transfer == nullptr;
}

}  // namespace

bool RemoteExchange::all_received(Pair& pair) { return done(pair.withdrawn) && done(pair.receiving); }

bool RemoteExchange::all_done(Pair& pair) { return done(pair.sending) && all_received(pair); }

void RemoteExchange::abandon(Pair& pair) noexcept {
  for (auto* transfer : {&pair.sending, &pair.receiving, &pair.withdrawn}) {
    if (*transfer != nullptr) (*transfer)->abandon();
  }
}

bool RemoteExchange::sent_at_once() const {
  constexpr size_t kAtOnce = size_t{1} << 10;  // MPICH over UCX uses a rendezvous above
  return std::ranges::all_of(pairs_, [](const Pair& pair) { return pair.mine.sent <= kAtOnce; });
}

void RemoteExchange::move(Rank peer) {
  if (std::exchange(pair(peer).moves, true)) return;
  moving_.push_back(peer);
}

void RemoteExchange::begin_receive(Rank peer) {
  Pair& p = pair(peer);
  const Process there = map_.process_of(peer);
  const auto tag = static_cast<uint32_t>(p.theirs.tag);
  move(peer);
  if (goes_in_pieces(p.theirs, p.mine)) {
    p.receiving = receive_in_pieces(network_, there, tag, p.recvs);
  } else if (p.theirs.delivery == Delivery::packed || has_gaps(p.recvs)) {
    p.incoming = std::make_unique_for_overwrite<std::byte[]>(p.mine.expected);
    p.incoming_run = {peer, p.incoming.get(), p.mine.expected};
    p.receiving = network_.receive(there, tag, {&p.incoming_run, 1});
  } else {
    p.receiving = network_.receive(there, tag, p.recvs);
  }
}

void RemoteExchange::begin_send(Rank peer) {
  Pair& p = pair(peer);
  move(peer);
  p.sends_memory = p.waits_to_send = true;
  const auto waiting = std::ranges::subrange(unsent_.begin() + static_cast<ptrdiff_t>(next_unsent_), unsent_.end());
  const auto turn = [this](Rank one) { return turns_.empty() ? 0 : turns_[static_cast<size_t>(one)]; };
  unsent_.insert(std::ranges::upper_bound(waiting, turn(peer), {}, turn), peer);
}

// Sends to a few peers at a time, so that a large exchange is not packed or given to the network at once. All receives
// are posted from the beginning, so no order of sends can block.
void RemoteExchange::begin_sends() {
  while (sending_ < kSendWindow && next_unsent_ < unsent_.size()) start_send(unsent_[next_unsent_++]);
}

void RemoteExchange::start_send(Rank peer) {
  Pair& p = pair(peer);
  p.waits_to_send = false;
  ++sending_;
  const Process there = map_.process_of(peer);
  const auto tag = static_cast<uint32_t>(p.mine.tag);
  if (goes_in_pieces(p.mine, p.theirs)) {
    p.sending = send_in_pieces(network_, there, tag, p.sends);
  } else if (p.mine.delivery == Delivery::packed) {
    p.outgoing = packed(p.sends, p.mine.sent);
    p.outgoing_run = {peer, reinterpret_cast<std::byte*>(p.outgoing.data()), p.outgoing.size()};
    p.sending = network_.send(there, tag, {&p.outgoing_run, 1});
  } else {
    p.sending = network_.send(there, tag, p.sends);
  }
}

bool RemoteExchange::advance() {
  const size_t before = moving_.size();
  std::erase_if(moving_, [this](Rank peer) { return advance(peer); });
  begin_sends();
  return moving_.size() != before;
}

// Advances a pair. Returns whether it is done.
bool RemoteExchange::advance(Rank peer) {
  Pair& p = pair(peer);
  if (p.sends_memory && !p.waits_to_send && done(p.sending)) {
    p.sends_memory = false;
    p.outgoing.clear();
    --sending_;
  }
  if (!all_received(p) || p.sends_memory) return false;
  if (p.incoming != nullptr) {
    unpack({reinterpret_cast<const char*>(p.incoming.get()), p.mine.expected}, p.recvs);
    p.incoming.reset();
  }
  if (end_repeat(p)) {  // the other end repeats, too
    p.received_facts = true;
    p.agreed = true;
    if (p.theirs.delivery == Delivery::rendezvous) good_until_ = std::min(good_until_, p.since + kRepeatTimeout);
    settle(p);
  }
  if (!p.settled) return false;
  p.moves = false;
  return true;
}

void RemoteExchange::part_from(Rank peer) noexcept {
  Pair& p = pair(peer);
  if (!p.settled || p.agreed || !p.moves) return;
  abandon(p);
  if (p.sends_memory) --sending_;
  p.sends_memory = p.moves = false;
  std::erase(moving_, peer);
  parted_.push_back(peer);
}

void RemoteExchange::abandon() noexcept {
  unsent_.clear();
  for (const auto* const ranks : {&moving_, &parted_}) {
    for (const Rank peer : *ranks) abandon(pair(peer));
  }
}

bool RemoteExchange::let_go() noexcept try {
  if (!moving_.empty() || !parted_.empty()) network_.advance();
  for (auto* const ranks : {&moving_, &parted_}) {
    for (; !ranks->empty(); ranks->pop_back()) {
      if (!all_done(pair(ranks->back()))) return false;
    }
  }
  return true;
} catch (const std::exception&) {  // the state of the transfers is unknown
  return false;
}

}  // namespace a2a::hosts
