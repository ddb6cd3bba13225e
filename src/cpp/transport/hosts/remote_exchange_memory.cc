// The bytes of a RemoteExchange that go from memory to memory.
#include <algorithm>
#include <utility>

#include "transport/hosts/remote_exchange.h"

namespace a2a::hosts {
namespace {

bool all_done(std::vector<std::unique_ptr<Transfer>>& transfers) {
  while (!transfers.empty() && transfers.back()->done()) transfers.pop_back();
  return transfers.empty();
}

}  // namespace

void RemoteExchange::move(Rank peer) {
  if (std::exchange(pair(peer).moves, true)) return;
  moving_.push_back(peer);
}

void RemoteExchange::begin_receive(Rank peer) {
  Pair& p = pair(peer);
  const Endpoint there = places_.endpoint_of(peer);
  const auto tag = static_cast<uint32_t>(p.theirs.where);
  move(peer);
  if (carriage(p.theirs) == Carriage::packed) {
    p.incoming = std::make_unique_for_overwrite<std::byte[]>(p.mine.expected);
    p.receiving.push_back(network_.receive(there, tag, p.incoming.get(), p.mine.expected));
  } else {
    for (const Run& run : p.recvs) p.receiving.push_back(network_.receive(there, tag, run.data, run.bytes));
  }
}

void RemoteExchange::begin_send(Rank peer) {
  Pair& p = pair(peer);
  move(peer);
  p.sends_memory = p.waits_to_send = true;
  unsent_.push_back(peer);
}

// A few peers at a time, so that not all of a large exchange is packed or handed to the network at once. Receives are
// there from the beginning, so whoever sends first, nobody waits for a turn of the other side.
void RemoteExchange::begin_sends() {
  constexpr int kWindow = 8;
  for (; sending_ < kWindow && !unsent_.empty(); unsent_.pop_front()) start_send(unsent_.front());
}

void RemoteExchange::start_send(Rank peer) {
  Pair& p = pair(peer);
  p.waits_to_send = false;
  ++sending_;
  const Endpoint there = places_.endpoint_of(peer);
  const auto tag = static_cast<uint32_t>(p.mine.where);
  if (carriage(p.mine) == Carriage::packed) {
    p.outgoing = packed(p.sends, p.mine.sent);
    p.sending.push_back(
        network_.send(there, tag, reinterpret_cast<const std::byte*>(p.outgoing.data()), p.outgoing.size()));
  } else {
    for (const Run& run : p.sends) p.sending.push_back(network_.send(there, tag, run.data, run.bytes));
  }
}

// Asking after a transfer may cost as much as a look at the whole network. So each time one transfer is asked after,
// and the next ones as long as they are done.
bool RemoteExchange::advance() {
  bool moved = false;
  for (size_t left = moving_.size(); left > 0; --left) {
    const Rank peer = moving_.front();
    moving_.pop_front();
    const bool asked = !pair(peer).waits_to_send;
    const bool done = asked && advance(peer);
    moved |= done;
    if (!done) moving_.push_back(peer);
    if (asked && !done) break;
  }
  begin_sends();
  return moved;
}

// Whether all is done for the pair. What is sent comes first: others wait for its place in the window, and it needs
// nothing but the peer's receive.
bool RemoteExchange::advance(Rank peer) {
  Pair& p = pair(peer);
  if (p.sends_memory) {
    if (!all_done(p.sending)) return false;
    p.sends_memory = false;
    p.outgoing.clear();
    --sending_;
  }
  if (!all_done(p.receiving)) return false;
  if (p.incoming != nullptr) {
    unpack({reinterpret_cast<const char*>(p.incoming.get()), p.mine.expected}, p.recvs);
    p.incoming.reset();
  }
  if (end_repeat(p)) {  // the other end does, too
    p.heard = true;
    p.agreed = true;
    if (carriage(p.theirs) == Carriage::memory) good_until_ = std::min(good_until_, p.since + kSilence);
    settle(p);
  }
  if (!p.settled) return false;
  p.moves = false;
  return true;
}

void RemoteExchange::part_from(Rank peer) noexcept {
  Pair& p = pair(peer);
  if (!p.settled || p.agreed || !p.moves) return;
  for (const auto& transfer : p.sending) transfer->abandon();
  for (const auto& transfer : p.receiving) transfer->abandon();
  if (p.sends_memory) --sending_;
  p.sends_memory = p.moves = false;
  std::erase(moving_, peer);
  parted_.push_back(peer);
}

void RemoteExchange::abandon() noexcept {
  unsent_.clear();
  for (const auto* const ranks : {&moving_, &parted_}) {
    for (const Rank peer : *ranks) {
      for (const auto& transfer : pair(peer).sending) transfer->abandon();
      for (const auto& transfer : pair(peer).receiving) transfer->abandon();
    }
  }
}

bool RemoteExchange::let_go() {
  for (auto* const ranks : {&moving_, &parted_}) {
    for (; !ranks->empty(); ranks->pop_back()) {
      Pair& p = pair(ranks->back());
      if (!all_done(p.sending) || !all_done(p.receiving)) return false;
    }
  }
  return true;
}

}  // namespace a2a::hosts
