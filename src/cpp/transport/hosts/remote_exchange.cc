#include "transport/hosts/remote_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/shm/facts.h"

namespace a2a::hosts {
namespace {

// Runs shorter than this on average travel in one piece: a message costs more than copying them twice.
constexpr size_t kLongRun = size_t{16} << 10;

// So many bytes of a pair go in the message that this rank tells the peer itself: a copy at each end costs less than
// another message.
constexpr size_t kMostBesideFacts = size_t{32} << 10;

std::string gathered(std::span<const Run> runs, size_t bytes) {
  std::string text;
  text.reserve(bytes);
  for (const Run& run : runs) text.append(reinterpret_cast<const char*>(run.data), run.bytes);
  return text;
}

void scatter(std::string_view text, std::span<const Run> runs) {
  for (const Run& run : runs) {
    std::memcpy(run.data, text.data(), run.bytes);
    text.remove_prefix(run.bytes);
  }
}

Carriage carriage(const shm::Head& facts) { return static_cast<Carriage>(facts.kind); }

bool moves_memory(const shm::Head& facts) {
  return carriage(facts) == Carriage::memory || carriage(facts) == Carriage::packed;
}

}  // namespace

RemoteExchange::RemoteExchange(const Batch& batch, Rank rank, std::shared_ptr<const Places> where, Network& network)
    : batch_(batch),
      rank_(rank),
      kept_(std::move(where)),
      places_(*kept_),
      network_(network),
      pairs_(static_cast<size_t>(places_.size())) {
  const Places& places = places_;
  std::span<const Run> all_sends = batch.sends, all_recvs = batch.recvs;
  for (Rank peer = 0; peer < places.size(); ++peer) {
    const auto sends = take_runs(all_sends, peer), recvs = take_runs(all_recvs, peer);
    Pair& p = pair(peer);
    p.remote = places.host_of(peer) != places.host_of(rank);
    if (!p.remote) continue;
    ++unsettled_;
    p.sends = sends;
    p.recvs = recvs;
    p.mine = shm::facts(batch.signature, p.sends, p.recvs);
  }
  tells_itself_ = prefers_to_tell();
  for (Rank peer = 0; peer < places.size(); ++peer) {
    Pair& p = pair(peer);
    if (!p.remote) continue;
    p.mine.kind = static_cast<uint8_t>(choose(p));
    if (moves_memory(p.mine)) p.mine.where = network.next_tag(places.endpoint_of(peer));
  }
}

// By the average of what this rank sends and receives: peers may come to another conclusion.
bool RemoteExchange::prefers_to_tell() const {
  if (places_.relayed == 0) return true;
  if (batch_.way != Way::exchange || !batch_.refusal.empty()) return false;
  uint64_t bytes = 0, messages = 0;
  for (const Pair& pair : pairs_) {
    if (pair.remote) bytes += pair.mine.sent + pair.mine.expected, messages += 2;
  }
  return bytes > messages * places_.relayed && bytes <= messages * kMostBesideFacts;
}

Carriage RemoteExchange::choose(const Pair& pair) const {
  const size_t bytes = pair.mine.sent;
  if (!batch_.refusal.empty()) return Carriage::refused;
  if (bytes == 0 || batch_.way == Way::compare) return Carriage::nothing;
  if (bytes <= (tells_itself_ ? kMostBesideFacts : places_.relayed)) return Carriage::entry;
  const bool short_runs = pair.sends.size() > 1 && bytes / pair.sends.size() < kLongRun;
  return short_runs ? Carriage::packed : Carriage::memory;
}

std::vector<Entry> RemoteExchange::entries() {
  std::vector<Entry> entries;
  entries.reserve(pairs_.size());
  for (int step = 1; step < places_.size(); ++step) {
    const Rank peer = send_peer(rank_, places_.size(), step);
    Pair& p = pair(peer);
    if (!p.remote) continue;
    std::string_view payload;
    if (carriage(p.mine) == Carriage::refused) {
      payload = std::string_view(batch_.refusal).substr(0, kLongestRefusal);
    } else if (carriage(p.mine) == Carriage::entry && p.sends.size() == 1) {
      payload = {reinterpret_cast<const char*>(p.sends[0].data), p.mine.sent};
    } else if (carriage(p.mine) == Carriage::entry) {
      p.outgoing = gathered(p.sends, p.mine.sent);
      payload = p.outgoing;
    }
    entries.push_back({rank_, peer, p.mine, payload});
  }
  return entries;
}

void RemoteExchange::hear(const Entry& entry) {
  Pair& p = pair(entry.source);
  if (!p.remote || p.heard) return;
  p.heard = true;
  p.theirs = entry.facts;
  const bool refused = carriage(p.theirs) == Carriage::refused;
  if (!batch_.refusal.empty()) return settle(p);  // everybody was told; what the others want no longer matters
  if (refused) {
    quarrels_.push_back(name_of(batch_.signature) + ": rank " + std::to_string(entry.source) +
                        " does not take part, its arguments were refused there: " + std::string(entry.payload));
    return settle(p);
  }
  if (!shm::agree(p.mine, p.theirs)) {
    quarrels_.push_back(shm::disagreement(batch_.signature, batch_.unit_bytes, rank_, p.mine, entry.source, p.theirs));
    return settle(p);
  }
  agree(entry);
}

void RemoteExchange::hear_passed(Rank peer) {
  Pair& p = pair(peer);
  if (!p.remote || p.heard) return;
  p.heard = true;
  if (!batch_.refusal.empty()) {
    throw Error(Code::aborted, name_of(batch_.signature) + ": rank " + std::to_string(rank_) +
                                   " does not take part, its arguments were refused there: " + batch_.refusal +
                                   "; other ranks run it on a device already");
  }
  if (batch_.way != a2a::Way::compare) {
    quarrels_.push_back(name_of(batch_.signature) + ": rank " + std::to_string(peer) +
                        " runs it on a device without comparing, rank " + std::to_string(rank_) + " in " +
                        to_string(batch_.signature.memory) + " memory");
  }
  settle(p);
}

void RemoteExchange::settle(Pair& pair) {
  if (pair.settled) return;
  pair.settled = true;
  --unsettled_;
}

// The two have the same facts: what is there is taken, what goes from memory to memory starts now.
void RemoteExchange::agree(const Entry& entry) {
  Pair& p = pair(entry.source);
  const bool nothing_expected = batch_.way != a2a::Way::exchange || p.mine.expected == 0;
  const bool complete = carriage(p.theirs) == Carriage::entry ? entry.payload.size() == p.mine.expected
                                                              : moves_memory(p.theirs) || nothing_expected;
  if (!complete) {
    throw Error(Code::backend,
                network_.name() + ": rank " + std::to_string(entry.source) + " sent a message that makes no sense");
  }
  if (carriage(p.theirs) == Carriage::entry) scatter(entry.payload, p.recvs);
  begin_memory(entry.source);
  settle(p);
}

void RemoteExchange::begin_memory(Rank peer) {
  Pair& p = pair(peer);
  const Endpoint there = places_.endpoint_of(peer);
  const auto tag = static_cast<uint32_t>(p.theirs.where);
  if (carriage(p.theirs) == Carriage::packed) {
    p.incoming.resize(p.mine.expected);
    p.waits_for_packed = true;
    p.transfers.push_back(
        network_.receive(there, tag, reinterpret_cast<std::byte*>(p.incoming.data()), p.incoming.size()));
  } else if (carriage(p.theirs) == Carriage::memory) {
    read_memory_ = true;
    for (const Run& run : p.recvs) p.transfers.push_back(network_.receive(there, tag, run.data, run.bytes));
  }
  p.sends_memory = moves_memory(p.mine);
  if (p.transfers.empty() && !p.sends_memory) return;
  moving_.push_back(peer);
  if (!p.sends_memory) return;
  p.waits_to_send = true;
  unsent_.push_back(peer);
  begin_sends();
}

// A few peers at a time, so that not all of a large exchange is packed or handed to the network at once. Receives are
// there from the beginning, so whoever sends first, nobody waits for a turn of the other side.
void RemoteExchange::begin_sends() {
  constexpr int kWindow = 8;
  for (; sending_ < kWindow && !unsent_.empty(); unsent_.pop_front(), ++sending_) {
    Pair& p = pair(unsent_.front());
    p.waits_to_send = false;
    const Endpoint there = places_.endpoint_of(unsent_.front());
    const auto tag = static_cast<uint32_t>(p.mine.where);
    if (carriage(p.mine) == Carriage::packed) {
      p.outgoing = gathered(p.sends, p.mine.sent);
      p.transfers.push_back(
          network_.send(there, tag, reinterpret_cast<const std::byte*>(p.outgoing.data()), p.outgoing.size()));
    } else {
      for (const Run& run : p.sends) p.transfers.push_back(network_.send(there, tag, run.data, run.bytes));
    }
  }
}

// Asking after a transfer may cost as much as a look at the whole network. So each time one pair is asked after, and
// the next ones as long as they are done.
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

bool RemoteExchange::advance(Rank peer) {
  Pair& p = pair(peer);
  while (!p.transfers.empty() && p.transfers.back()->done()) p.transfers.pop_back();
  if (!p.transfers.empty()) return false;
  if (p.sends_memory) --sending_;
  if (p.waits_for_packed) scatter(p.incoming, p.recvs);
  p.waits_for_packed = false;
  p.incoming.clear();
  p.outgoing.clear();
  return true;
}

bool RemoteExchange::finished() const { return unsettled_ == 0 && moving_.empty(); }

bool RemoteExchange::waits_for_network() const { return !moving_.empty(); }

bool RemoteExchange::arrived(Rank peer) const {
  const Pair& p = pairs_[static_cast<size_t>(peer)];
  return p.settled && p.transfers.empty() && !p.waits_for_packed && shm::agree(p.mine, p.theirs);
}

bool RemoteExchange::waits_for(Rank peer) const {
  const Pair& p = pairs_[static_cast<size_t>(peer)];
  return p.remote && (!p.settled || !p.transfers.empty());
}

void RemoteExchange::abandon() noexcept {
  unsent_.clear();
  for (const Rank peer : moving_) {
    for (const auto& transfer : pair(peer).transfers) transfer->abandon();
  }
}

bool RemoteExchange::let_go() {
  while (!moving_.empty()) {
    auto& transfers = pair(moving_.back()).transfers;
    while (!transfers.empty() && transfers.back()->done()) transfers.pop_back();
    if (!transfers.empty()) return false;
    moving_.pop_back();
  }
  return true;
}

}  // namespace a2a::hosts
