#include "transport/hosts/remote_exchange.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "core/facts.h"
#include "core/send_order.h"
#include "transport/hosts/runs.h"

namespace a2a::hosts {
namespace {

// Runs shorter than this on average are packed into one: a message costs more than copying them twice.
constexpr size_t kLongRun = size_t{16} << 10;

// The most bytes of a pair that go with facts that this rank sends itself (eager): a copy at each end costs less than
// another message.
constexpr size_t kMostBesideFacts = size_t{32} << 10;

bool in_short_runs(std::span<const Run> runs, size_t bytes) {
  return runs.size() > 1 && bytes / runs.size() < kLongRun;
}

// Whether these facts say that their sender repeats the facts `earlier`.
bool repeats(const SentFacts& facts, const SentFacts& earlier) {
  return facts.repeats != 0 && facts.tag == earlier.tag;
}

}  // namespace

RemoteExchange::RemoteExchange(const Batch& batch, Rank rank, std::shared_ptr<const HostMap> where, Network& network)
    : batch_(batch),
      rank_(rank),
      kept_(std::move(where)),
      map_(*kept_),
      network_(network),
      pairs_(static_cast<size_t>(map_.size())) {
  std::span<const Run> all_sends = batch.sends, all_recvs = batch.recvs;
  for (Rank peer = 0; peer < map_.size(); ++peer) {
    const auto sends = take_runs(all_sends, peer), recvs = take_runs(all_recvs, peer);
    Pair& p = pair(peer);
    // In a later stage all ranks have agreed already.
    const bool silent = batch.stage > 0 && sends.empty() && recvs.empty();
    p.remote = map_.host_of(peer) != map_.host_of(rank) && !silent;
    if (!p.remote) continue;
    ++unsettled_;
    p.sends = sends;
    p.recvs = recvs;
    set_common(p.mine, batch.signature);
    add_sizes(p.mine, p.sends, p.recvs);
    p.mine.gaps = has_gaps(p.sends) || has_gaps(p.recvs);
  }
}

bool RemoteExchange::finished() const { return unsettled_ == 0 && moving_.empty(); }

bool RemoteExchange::waits_for_network() const { return !moving_.empty(); }

bool RemoteExchange::arrived(Rank peer) const {
  const Pair& p = pair(peer);
  return p.agreed && !p.moves;
}

bool RemoteExchange::waits_for(Rank peer) const {
  const Pair& p = pair(peer);
  return p.remote && (!p.settled || p.moves);
}

// ---- facts to send ------------------------------------------------------------------------------------------------

std::vector<Entry> RemoteExchange::begin(const std::vector<CachedMatches>* agreed, const Earlier& earlier) {
  began_ = Deadline::Clock::now();
  Known repeated = agreed != nullptr ? known(*agreed, earlier) : Known(pairs_.size());
  sends_itself_ = prefers_to_send(repeated);
  if (!sends_itself_) send_to_receivers(repeated);
  choose_turns();
  for (Rank peer = 0; peer < map_.size(); ++peer) {
    if (const CachedMatch* match = repeated[static_cast<size_t>(peer)]) repeat(peer, *match);
  }
  std::vector<Entry> entries;
  entries.reserve(pairs_.size());
  for (int step = 1; step < map_.size(); ++step) {
    const Rank peer = send_peer(rank_, map_.size(), step);
    Pair& p = pair(peer);
    if (!p.remote) continue;
    if (p.repeats) {
      begin_send(peer);
      continue;
    }
    p.mine.delivery = choose(p);
    p.mine.repeated = choose_for_repeats(p);
    const bool wants_tag = p.mine.moves_memory() || p.mine.repeated != Delivery::nothing;
    if (wants_tag) p.mine.tag = network_.next_tag(map_.process_of(peer));
    entries.push_back(entry_for(peer));
  }
  if (repeating_ > 0) late_at_ = began_ + kRepeatTimeout;
  begin_sends();
  return entries;
}

std::vector<Entry> RemoteExchange::send_facts_late(Deadline::Clock::time_point now) {
  std::vector<Entry> entries;
  if (!late_at_ || now < *late_at_) return entries;
  late_at_.reset();
  for (Rank peer = 0; peer < map_.size(); ++peer) {
    Pair& p = pair(peer);
    if (!p.repeats) continue;
    p.facts_sent = true;
    p.mine.repeats = 1;
    if (p.waits_to_send) {  // the facts say that the bytes are under way
      std::erase(unsent_, peer);
      start_send(peer);
    }
    entries.push_back(entry_for(peer));
  }
  return entries;
}

RemoteExchange::Known RemoteExchange::known(const std::vector<CachedMatches>& agreed, const Earlier& earlier) const {
  Known known(pairs_.size());
  for (Rank peer = 0; peer < map_.size(); ++peer) {
    if (!pair(peer).remote || pair(peer).mine.gaps != 0) continue;  // memory with gaps is never repeated
    const CachedMatch* match = agreed[static_cast<size_t>(peer)].find(pair(peer).mine);
    if (match == nullptr) continue;
    const auto facts = earlier.find(peer);
    const bool means_it = facts == earlier.end() || repeats(facts->second, match->theirs);
    const bool fresh = network_.fresh(map_.process_of(peer), static_cast<uint32_t>(match->mine.tag));
    if (means_it && fresh) known[static_cast<size_t>(peer)] = match;
  }
  return known;
}

void RemoteExchange::choose_turns() {
  if (map_.size() <= kSendWindow) return;
  std::vector<uint64_t> bytes(pairs_.size());
  for (size_t i = 0; i < pairs_.size(); ++i) bytes[i] = pairs_[i].remote ? pairs_[i].mine.sent : 0;
  turns_.resize(pairs_.size());
  int turn = 0;
  for (const Rank peer : send_order(rank_, bytes)) turns_[static_cast<size_t>(peer)] = turn++;
}

// Removes cached matches that must not be repeated. A rank with entries to relay sends its facts to all receivers of
// its host's bundles: they may have to pass entries on (hosts/relay.h), so they must not finish early. A receiver with
// entries to relay expects the facts of the ranks that it receives from, and sends them its own.
void RemoteExchange::send_to_receivers(Known& known) const {
  const auto without_match = [&](Rank peer) {
    return pair(peer).remote && known[static_cast<size_t>(peer)] == nullptr;
  };
  if (std::ranges::none_of(std::views::iota(Rank{0}, map_.size()), without_match)) return;
  const int home = map_.host_of(rank_);
  const uint64_t number = batch_.signature.number;
  for (Rank peer = 0; peer < map_.size(); ++peer) {
    const int host = map_.host_of(peer);
    const bool receives = peer == map_.receiver_of(host, home, number) || rank_ == map_.receiver_of(home, host, number);
    if (host != home && receives) known[static_cast<size_t>(peer)] = nullptr;
  }
}

// Decides by the mean of the bytes that this rank sends and receives. Peers may decide otherwise.
bool RemoteExchange::prefers_to_send(const Known& known) const {
  if (map_.relayed == 0 || batch_.stage > 0) return true;
  if (batch_.way != Way::exchange || !batch_.refusal.empty()) return false;
  uint64_t bytes = 0, messages = 0;
  for (Rank peer = 0; peer < map_.size(); ++peer) {
    const Pair& p = pair(peer);
    if (p.remote && known[static_cast<size_t>(peer)] == nullptr) bytes += p.mine.sent + p.mine.expected, messages += 2;
  }
  return bytes > messages * map_.relayed && bytes <= messages * kMostBesideFacts;
}

Delivery RemoteExchange::choose(const Pair& pair) const {
  const size_t bytes = pair.mine.sent;
  if (!batch_.refusal.empty()) return Delivery::refused;
  if (bytes == 0 || batch_.way == Way::compare) return Delivery::nothing;
  if (bytes <= (sends_itself_ ? kMostBesideFacts : map_.relayed)) return Delivery::eager;
  return pair.mine.gaps == 0 && in_short_runs(pair.sends, bytes) ? Delivery::packed : Delivery::rendezvous;
}

// Chooses the way of later operations that repeat this one. Bytes stand for facts only if there are some in both
// directions, in a single message each. Few bytes are relayed instead.
Delivery RemoteExchange::choose_for_repeats(const Pair& pair) const {
  const size_t few = map_.relayed;
  if (!batch_.refusal.empty() || batch_.way != Way::exchange || pair.mine.gaps != 0) return Delivery::nothing;
  if (pair.mine.sent <= few || pair.mine.expected <= few) return Delivery::nothing;
  if (pair.sends.size() == 1) return Delivery::rendezvous;
  return in_short_runs(pair.sends, pair.mine.sent) ? Delivery::packed : Delivery::nothing;
}

void RemoteExchange::repeat(Rank peer, const CachedMatch& match) {
  Pair& p = pair(peer);
  p.repeats = true;
  p.since = match.since;
  ++repeating_;
  p.mine = match.mine;
  p.theirs = match.theirs;
  p.mine.delivery = p.mine.repeated;
  p.theirs.delivery = p.theirs.repeated;
  begin_receive(peer);
}

Entry RemoteExchange::entry_for(Rank peer) {
  Pair& p = pair(peer);
  std::string_view payload;
  if (p.mine.delivery == Delivery::refused) {
    payload = std::string_view(batch_.refusal).substr(0, kLongestRefusal);
  } else if (p.mine.delivery == Delivery::eager && p.sends.size() == 1 && !has_gaps(p.sends)) {
    payload = {reinterpret_cast<const char*>(p.sends[0].data), p.mine.sent};
  } else if (p.mine.delivery == Delivery::eager) {
    p.outgoing = packed(p.sends, p.mine.sent);
    payload = p.outgoing;
  }
  return {rank_, peer, p.mine, payload};
}

// ---- facts received -----------------------------------------------------------------------------------------------

std::optional<Entry> RemoteExchange::handle(const Entry& entry) {
  Pair& p = pair(entry.source);
  if (!p.remote || p.received_facts) return std::nullopt;
  if (p.repeats && repeats(entry.facts, p.theirs)) return std::nullopt;  // both repeat the same match
  p.received_facts = true;
  p.theirs = entry.facts;
  const bool repeated = end_repeat(p);
  if (repeated) {
    withdraw(p);
    p.mine.repeats = 1;
  }
  conclude(entry);
  return repeated && !p.facts_sent ? std::optional(entry_for(entry.source)) : std::nullopt;
}

void RemoteExchange::conclude(const Entry& entry) {
  Pair& p = pair(entry.source);
  const bool refused = p.theirs.delivery == Delivery::refused;
  if (batch_.refusal.empty() && !refused && a2a::agree(p.mine, p.theirs)) return agree(entry);
  discard(entry);
  keep_unsent(entry.source);
  settle(p);
  if (!batch_.refusal.empty()) return;  // all peers have the refusal; their bytes no longer matter
  disagreements_.push_back(
      refused ? name_of(batch_.signature) + ": rank " + std::to_string(entry.source) +
                    " does not take part, its arguments were refused there: " + std::string(entry.payload)
              : disagreement(batch_.signature, batch_.unit_bytes, rank_, p.mine, entry.source, p.theirs));
}

// Ends the repetition of a cached match: the other end's choice is known. Returns whether this rank repeated.
bool RemoteExchange::end_repeat(Pair& pair) {
  if (!std::exchange(pair.repeats, false)) return false;
  --repeating_;
  return true;
}

// Withdraws the receive of repeated bytes: the other end has sent facts instead.
void RemoteExchange::withdraw(Pair& pair) {
  if (pair.receiving != nullptr) pair.receiving->withdraw();
  pair.withdrawn = std::move(pair.receiving);
  pair.withdrawn_incoming = std::move(pair.incoming);
}

// Cancels repeated bytes that were not sent. The other end discards those that were.
void RemoteExchange::keep_unsent(Rank peer) {
  Pair& p = pair(peer);
  if (!p.waits_to_send) return;
  std::erase(unsent_, peer);
  p.mine.repeats = 0;
  p.sends_memory = p.waits_to_send = false;
}

void RemoteExchange::handle_passed(Rank peer) {
  Pair& p = pair(peer);
  if (!p.remote || p.received_facts) return;
  p.received_facts = true;
  if (end_repeat(p)) withdraw(p);
  if (!batch_.refusal.empty()) {
    throw Error(Code::aborted, name_of(batch_.signature) + ": rank " + std::to_string(rank_) +
                                   " does not take part, its arguments were refused there: " + batch_.refusal +
                                   "; other ranks run it on a device already");
  }
  if (batch_.way != a2a::Way::compare) {
    disagreements_.push_back(name_of(batch_.signature) + ": rank " + std::to_string(peer) +
                             " runs it on a device without comparing, rank " + std::to_string(rank_) + " in " +
                             to_string(batch_.signature.memory) + " memory");
  }
  keep_unsent(peer);
  settle(p);
  part_from(peer);
}

void RemoteExchange::settle(Pair& pair) {
  if (pair.settled) return;
  pair.settled = true;
  --unsettled_;
}

// Ends the comparison of a pair with the same facts: takes the bytes that have come, and begins the transfers.
void RemoteExchange::agree(const Entry& entry) {
  Pair& p = pair(entry.source);
  const bool nothing_expected = batch_.way != a2a::Way::exchange || p.mine.expected == 0;
  const bool complete = p.theirs.delivery == Delivery::eager ? entry.payload.size() == p.mine.expected
                                                             : p.theirs.moves_memory() || nothing_expected;
  if (!complete) {
    throw Error(Code::backend,
                network_.name() + ": rank " + std::to_string(entry.source) + " sent a message that makes no sense");
  }
  p.agreed = true;
  if (p.theirs.delivery == Delivery::eager) unpack(entry.payload, p.recvs);
  if (p.theirs.moves_memory()) begin_receive(entry.source);
  if (p.theirs.delivery == Delivery::rendezvous) good_until_ = {};
  if (p.mine.moves_memory() && p.mine.repeats == 0) begin_send(entry.source);
  begin_sends();
  settle(p);
}

// Discards the bytes of a peer that repeats a cached match while this rank does not.
void RemoteExchange::discard(const Entry& entry) {
  Pair& p = pair(entry.source);
  if (!p.theirs.moves_memory() || p.theirs.repeats == 0) return;
  const Process there = map_.process_of(entry.source);
  p.receiving = network_.discard(there, static_cast<uint32_t>(p.theirs.tag), p.theirs.sent);
  move(entry.source);
}

void RemoteExchange::note_matches(std::vector<CachedMatches>& agreed) const {
  for (Rank peer = 0; peer < map_.size(); ++peer) {
    const Pair& p = pair(peer);
    // The peer repeated before it knew that this rank does not, or may have. It may still have a receive with this
    // rank's tag of that match, which would take the bytes of a later operation.
    if (p.received_facts && p.theirs.repeats != 0) agreed[static_cast<size_t>(peer)].forget(p.theirs.tag);
    if (!p.agreed || p.mine.repeated == Delivery::nothing || p.theirs.repeated == Delivery::nothing) continue;
    CachedMatch match{p.mine, p.theirs, began_};
    match.mine.repeats = match.theirs.repeats = 0;
    agreed[static_cast<size_t>(peer)].note(match);
  }
}

}  // namespace a2a::hosts
