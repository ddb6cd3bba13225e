#include "transport/hosts/remote_exchange.h"

#include <algorithm>
#include <cstring>

#include "transport/shm/facts.h"

namespace a2a::hosts {
namespace {

// Runs shorter than this on average travel in one piece: a message costs more than copying them twice.
constexpr size_t kLongRun = size_t{16} << 10;

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

}  // namespace

RemoteExchange::RemoteExchange(const Batch& batch, Rank rank, std::shared_ptr<const Places> where, uint64_t channel,
                               Network& network)
    : batch_(batch),
      rank_(rank),
      kept_(std::move(where)),
      places_(*kept_),
      channel_(channel),
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
    p.mine.kind = static_cast<uint8_t>(choose(p));
    if (carriage(p.mine) == Carriage::memory || carriage(p.mine) == Carriage::packed) {
      p.mine.where = network.next_tag(places.endpoint_of(peer));
    }
  }
}

Carriage RemoteExchange::choose(const Pair& pair) const {
  const size_t bytes = pair.mine.sent;
  if (!batch_.refusal.empty()) return Carriage::refused;
  if (bytes == 0 || batch_.way == Way::compare) return Carriage::nothing;
  if (bytes <= places_.limits.aggregate) return Carriage::entry;
  if (bytes <= places_.limits.eager) return Carriage::message;
  return bytes / pair.sends.size() >= kLongRun ? Carriage::memory : Carriage::packed;
}

std::vector<Entry> RemoteExchange::entries() {
  std::vector<Entry> entries;
  entries.reserve(pairs_.size());
  for (int step = 1; step < places_.size(); ++step) {
    const Rank peer = send_peer(rank_, places_.size(), step);
    Pair& p = pair(peer);
    if (!p.remote) continue;
    if (carriage(p.mine) == Carriage::entry) p.outgoing = gathered(p.sends, p.mine.sent);
    constexpr size_t kLongestRefusal = 512;
    const std::string_view payload = carriage(p.mine) == Carriage::refused
                                         ? std::string_view(batch_.refusal).substr(0, kLongestRefusal)
                                         : p.outgoing;
    entries.push_back({rank_, peer, p.mine, payload});
  }
  return entries;
}

void RemoteExchange::post_messages() {
  const Prefix prefix{channel_, Kind::payload, rank_, batch_.signature.number};
  for (int step = 1; step < places_.size(); ++step) {
    const Rank peer = send_peer(rank_, places_.size(), step);
    const Pair& p = pair(peer);
    if (!p.remote || carriage(p.mine) != Carriage::message) continue;
    network_.post(places_.endpoint_of(peer), message(prefix, gathered(p.sends, p.mine.sent)));
  }
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
  if (carriage(p.theirs) == Carriage::entry) {
    p.incoming = entry.payload;
    p.payload_arrived = true;
  }
  agree(entry.source);
}

void RemoteExchange::hear_payload(Rank peer, std::string payload) {
  Pair& p = pair(peer);
  if (!p.remote || p.payload_arrived) return;
  p.incoming = std::move(payload);
  p.payload_arrived = true;
  if (p.heard && !p.settled) agree(peer);
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
void RemoteExchange::agree(Rank peer) {
  Pair& p = pair(peer);
  switch (carriage(p.theirs)) {
    case Carriage::entry:
    case Carriage::message:
      if (!p.payload_arrived) return;
      if (p.incoming.size() != p.mine.expected) break;
      scatter(p.incoming, p.recvs);
      p.incoming.clear();
      begin_memory(peer);
      return settle(p);
    case Carriage::nothing:
      if (batch_.way == a2a::Way::exchange && p.mine.expected != 0) break;
      [[fallthrough]];
    case Carriage::memory:
    case Carriage::packed:
      begin_memory(peer);
      return settle(p);
    default:
      break;
  }
  throw Error(Code::backend,
              network_.name() + ": rank " + std::to_string(peer) + " sent a message that makes no sense");
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
  p.sends_memory = carriage(p.mine) == Carriage::memory || carriage(p.mine) == Carriage::packed;
  if (p.transfers.empty() && !p.sends_memory) return;
  ++unfinished_;
  moving_.push_back(peer);
  if (!p.sends_memory) return;
  unsent_.push_back(peer);
  begin_sends();
}

// A few peers at a time, so that not all of a large exchange is packed or handed to the network at once. Receives are
// there from the beginning, so whoever sends first, nobody waits for a turn of the other side.
void RemoteExchange::begin_sends() {
  constexpr int kWindow = 8;
  for (; sending_ < kWindow && !unsent_.empty(); unsent_.pop_front(), ++sending_) {
    Pair& p = pair(unsent_.front());
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

bool RemoteExchange::advance() {
  const size_t before = moving_.size();
  std::erase_if(moving_, [this](Rank peer) { return advance(peer); });
  begin_sends();
  return moving_.size() != before;
}

bool RemoteExchange::advance(Rank peer) {
  Pair& p = pair(peer);
  std::erase_if(p.transfers, [](const auto& transfer) { return transfer->done(); });
  if (!p.transfers.empty() || std::ranges::find(unsent_, peer) != unsent_.end()) return false;
  if (p.sends_memory) --sending_;
  if (p.waits_for_packed) scatter(p.incoming, p.recvs);
  p.waits_for_packed = false;
  p.incoming.clear();
  p.outgoing.clear();
  --unfinished_;
  return true;
}

bool RemoteExchange::finished() const { return unsettled_ == 0 && unfinished_ == 0; }

bool RemoteExchange::waits_for_network() const {
  return unfinished_ > 0 || std::ranges::any_of(pairs_, [](const Pair& p) { return p.heard && !p.settled; });
}

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
