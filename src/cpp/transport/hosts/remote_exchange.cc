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

// Whether these facts say that their sender repeats what it told `earlier`.
bool repeats(const Told& told, const Told& earlier) { return told.repeats != 0 && told.tag == earlier.tag; }

}  // namespace

RemoteExchange::RemoteExchange(const Batch& batch, Rank rank, std::shared_ptr<const Places> where, Network& network)
    : batch_(batch),
      rank_(rank),
      kept_(std::move(where)),
      places_(*kept_),
      network_(network),
      pairs_(static_cast<size_t>(places_.size())) {
  std::span<const Run> all_sends = batch.sends, all_recvs = batch.recvs;
  for (Rank peer = 0; peer < places_.size(); ++peer) {
    const auto sends = take_runs(all_sends, peer), recvs = take_runs(all_recvs, peer);
    Pair& p = pair(peer);
    // In a later stage all ranks have agreed already.
    const bool silent = batch.stage > 0 && sends.empty() && recvs.empty();
    p.remote = places_.host_of(peer) != places_.host_of(rank) && !silent;
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

std::vector<Entry> RemoteExchange::begin(const std::vector<Agreements>* agreed, const Earlier& earlier) {
  began_ = Deadline::Clock::now();
  Known repeated = agreed != nullptr ? known(*agreed, earlier) : Known(pairs_.size());
  tells_itself_ = prefers_to_tell(repeated);
  if (!tells_itself_) tell_receivers(repeated);
  choose_turns();
  for (Rank peer = 0; peer < places_.size(); ++peer) {
    if (const Agreement* agreement = repeated[static_cast<size_t>(peer)]) repeat(peer, *agreement);
  }
  std::vector<Entry> entries;
  entries.reserve(pairs_.size());
  for (int step = 1; step < places_.size(); ++step) {
    const Rank peer = send_peer(rank_, places_.size(), step);
    Pair& p = pair(peer);
    if (!p.remote) continue;
    if (p.repeats) {
      begin_send(peer);
      continue;
    }
    p.mine.carriage = choose(p);
    p.mine.repeated = choose_for_repeats(p);
    const bool wants_tag = p.mine.moves_memory() || p.mine.repeated != Carriage::nothing;
    if (wants_tag) p.mine.tag = network_.next_tag(places_.endpoint_of(peer));
    entries.push_back(entry_for(peer));
  }
  if (repeating_ > 0) speaks_up_ = began_ + kSilence;
  begin_sends();
  return entries;
}

std::vector<Entry> RemoteExchange::speak_up(Deadline::Clock::time_point now) {
  std::vector<Entry> entries;
  if (!speaks_up_ || now < *speaks_up_) return entries;
  speaks_up_.reset();
  for (Rank peer = 0; peer < places_.size(); ++peer) {
    Pair& p = pair(peer);
    if (!p.repeats) continue;
    p.told = true;
    p.mine.repeats = 1;
    if (p.waits_to_send) {  // the facts say that the bytes are under way
      std::erase(unsent_, peer);
      start_send(peer);
    }
    entries.push_back(entry_for(peer));
  }
  return entries;
}

RemoteExchange::Known RemoteExchange::known(const std::vector<Agreements>& agreed, const Earlier& earlier) const {
  Known known(pairs_.size());
  for (Rank peer = 0; peer < places_.size(); ++peer) {
    if (!pair(peer).remote || pair(peer).mine.gaps != 0) continue;  // memory with gaps is never repeated
    const Agreement* agreement = agreed[static_cast<size_t>(peer)].find(pair(peer).mine);
    if (agreement == nullptr) continue;
    const auto facts = earlier.find(peer);
    const bool means_it = facts == earlier.end() || repeats(facts->second, agreement->theirs);
    const bool fresh = network_.fresh(places_.endpoint_of(peer), static_cast<uint32_t>(agreement->mine.tag));
    if (means_it && fresh) known[static_cast<size_t>(peer)] = agreement;
  }
  return known;
}

void RemoteExchange::choose_turns() {
  if (places_.size() <= kSendWindow) return;
  std::vector<uint64_t> bytes(pairs_.size());
  for (size_t i = 0; i < pairs_.size(); ++i) bytes[i] = pairs_[i].remote ? pairs_[i].mine.sent : 0;
  turns_.resize(pairs_.size());
  int turn = 0;
  for (const Rank peer : send_order(rank_, bytes)) turns_[static_cast<size_t>(peer)] = turn++;
}

// Removes agreements that must not be repeated. A rank with entries to relay sends its facts to all receivers of its
// host's bundles: they may have to pass entries on (hosts/relay.h), so they must not finish early. A receiver with
// entries to relay expects the facts of the ranks that it receives from, and sends them its own.
void RemoteExchange::tell_receivers(Known& known) const {
  const auto untold = [&](Rank peer) { return pair(peer).remote && known[static_cast<size_t>(peer)] == nullptr; };
  if (std::ranges::none_of(std::views::iota(Rank{0}, places_.size()), untold)) return;
  const int home = places_.host_of(rank_);
  const uint64_t number = batch_.signature.number;
  for (Rank peer = 0; peer < places_.size(); ++peer) {
    const int host = places_.host_of(peer);
    const bool receives =
        peer == places_.receiver_of(host, home, number) || rank_ == places_.receiver_of(home, host, number);
    if (host != home && receives) known[static_cast<size_t>(peer)] = nullptr;
  }
}

// Decides by the mean of the bytes that this rank sends and receives. Peers may decide otherwise.
bool RemoteExchange::prefers_to_tell(const Known& known) const {
  if (places_.relayed == 0 || batch_.stage > 0) return true;
  if (batch_.way != Way::exchange || !batch_.refusal.empty()) return false;
  uint64_t bytes = 0, messages = 0;
  for (Rank peer = 0; peer < places_.size(); ++peer) {
    const Pair& p = pair(peer);
    if (p.remote && known[static_cast<size_t>(peer)] == nullptr) bytes += p.mine.sent + p.mine.expected, messages += 2;
  }
  return bytes > messages * places_.relayed && bytes <= messages * kMostBesideFacts;
}

Carriage RemoteExchange::choose(const Pair& pair) const {
  const size_t bytes = pair.mine.sent;
  if (!batch_.refusal.empty()) return Carriage::refused;
  if (bytes == 0 || batch_.way == Way::compare) return Carriage::nothing;
  if (bytes <= (tells_itself_ ? kMostBesideFacts : places_.relayed)) return Carriage::entry;
  return pair.mine.gaps == 0 && in_short_runs(pair.sends, bytes) ? Carriage::packed : Carriage::memory;
}

// Chooses the way of later operations that repeat this one. Bytes stand for facts only if there are some in both
// directions, in a single message each. Few bytes are relayed instead.
Carriage RemoteExchange::choose_for_repeats(const Pair& pair) const {
  const size_t few = places_.relayed;
  if (!batch_.refusal.empty() || batch_.way != Way::exchange || pair.mine.gaps != 0) return Carriage::nothing;
  if (pair.mine.sent <= few || pair.mine.expected <= few) return Carriage::nothing;
  if (pair.sends.size() == 1) return Carriage::memory;
  return in_short_runs(pair.sends, pair.mine.sent) ? Carriage::packed : Carriage::nothing;
}

void RemoteExchange::repeat(Rank peer, const Agreement& agreement) {
  Pair& p = pair(peer);
  p.repeats = true;
  p.since = agreement.since;
  ++repeating_;
  p.mine = agreement.mine;
  p.theirs = agreement.theirs;
  p.mine.carriage = p.mine.repeated;
  p.theirs.carriage = p.theirs.repeated;
  begin_receive(peer);
}

Entry RemoteExchange::entry_for(Rank peer) {
  Pair& p = pair(peer);
  std::string_view payload;
  if (p.mine.carriage == Carriage::refused) {
    payload = std::string_view(batch_.refusal).substr(0, kLongestRefusal);
  } else if (p.mine.carriage == Carriage::entry && p.sends.size() == 1 && !has_gaps(p.sends)) {
    payload = {reinterpret_cast<const char*>(p.sends[0].data), p.mine.sent};
  } else if (p.mine.carriage == Carriage::entry) {
    p.outgoing = packed(p.sends, p.mine.sent);
    payload = p.outgoing;
  }
  return {rank_, peer, p.mine, payload};
}

// ---- facts received -----------------------------------------------------------------------------------------------

std::optional<Entry> RemoteExchange::hear(const Entry& entry) {
  Pair& p = pair(entry.source);
  if (!p.remote || p.heard) return std::nullopt;
  if (p.repeats && repeats(entry.told, p.theirs)) return std::nullopt;  // both repeat the same agreement
  p.heard = true;
  p.theirs = entry.told;
  const bool repeated = end_repeat(p);
  if (repeated) {
    withdraw(p);
    p.mine.repeats = 1;
  }
  conclude(entry);
  return repeated && !p.told ? std::optional(entry_for(entry.source)) : std::nullopt;
}

void RemoteExchange::conclude(const Entry& entry) {
  Pair& p = pair(entry.source);
  const bool refused = p.theirs.carriage == Carriage::refused;
  if (batch_.refusal.empty() && !refused && a2a::agree(p.mine, p.theirs)) return agree(entry);
  discard(entry);
  keep_unsent(entry.source);
  settle(p);
  if (!batch_.refusal.empty()) return;  // all peers were told; their bytes no longer matter
  disagreements_.push_back(
      refused ? name_of(batch_.signature) + ": rank " + std::to_string(entry.source) +
                    " does not take part, its arguments were refused there: " + std::string(entry.payload)
              : disagreement(batch_.signature, batch_.unit_bytes, rank_, p.mine, entry.source, p.theirs));
}

// Ends the repetition of an agreement: the other end's choice is known. Returns whether this rank repeated.
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

void RemoteExchange::hear_passed(Rank peer) {
  Pair& p = pair(peer);
  if (!p.remote || p.heard) return;
  p.heard = true;
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
  const bool complete = p.theirs.carriage == Carriage::entry ? entry.payload.size() == p.mine.expected
                                                             : p.theirs.moves_memory() || nothing_expected;
  if (!complete) {
    throw Error(Code::backend,
                network_.name() + ": rank " + std::to_string(entry.source) + " sent a message that makes no sense");
  }
  p.agreed = true;
  if (p.theirs.carriage == Carriage::entry) unpack(entry.payload, p.recvs);
  if (p.theirs.moves_memory()) begin_receive(entry.source);
  if (p.theirs.carriage == Carriage::memory) good_until_ = {};
  if (p.mine.moves_memory() && p.mine.repeats == 0) begin_send(entry.source);
  begin_sends();
  settle(p);
}

// Discards the bytes of a peer that repeats an agreement while this rank does not.
void RemoteExchange::discard(const Entry& entry) {
  Pair& p = pair(entry.source);
  if (!p.theirs.moves_memory() || p.theirs.repeats == 0) return;
  const Endpoint there = places_.endpoint_of(entry.source);
  p.receiving = network_.discard(there, static_cast<uint32_t>(p.theirs.tag), p.theirs.sent);
  move(entry.source);
}

void RemoteExchange::note_agreements(std::vector<Agreements>& agreed) const {
  for (Rank peer = 0; peer < places_.size(); ++peer) {
    const Pair& p = pair(peer);
    // The peer repeated before it knew that this rank does not, or may have. It may still have a receive with this
    // rank's tag of that agreement, which would take the bytes of a later operation.
    if (p.heard && p.theirs.repeats != 0) agreed[static_cast<size_t>(peer)].forget(p.theirs.tag);
    if (!p.agreed || p.mine.repeated == Carriage::nothing || p.theirs.repeated == Carriage::nothing) continue;
    Agreement agreement{p.mine, p.theirs, began_};
    agreement.mine.repeats = agreement.theirs.repeats = 0;
    agreed[static_cast<size_t>(peer)].note(agreement);
  }
}

}  // namespace a2a::hosts
