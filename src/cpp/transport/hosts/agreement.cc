#include "transport/hosts/agreement.h"

#include <algorithm>
#include <cstring>

#include "runtime/faultpoint.h"
#include "runtime/hash.h"
#include "runtime/object_bytes.h"
#include "transport/hosts/messages.h"

namespace a2a::hosts {
namespace {

// Channels of communicators begin with 01, those of meetings with 1 (network_bootstrap.cc), these with 00.
uint64_t own_channel(uint64_t channel) { return Hash().add("shrink").add(channel).value() >> 2; }

enum class Word : char { proposes = 'p', commits = 'c', declines = 'd' };

void post(Network& network, const HostMap& map, Rank to, Rank from, uint64_t channel, const std::string& text) {
  network.post(map.process_of(to), message({channel, MessageKind::text, 0, from, 0}, text));
}

}  // namespace

Agreement::Agreement(Rank rank, std::shared_ptr<const HostMap> map, std::shared_ptr<Network> network, uint64_t channel,
                     const GroupCard& card)
    : rank_(rank),
      map_(std::move(map)),
      network_(std::move(network)),
      channel_(own_channel(channel)),
      ranks_(static_cast<size_t>(map_->size())) {
  state(rank_).card = card;
}

Agreement::~Agreement() { network_->close(channel_); }

void Agreement::decline(Rank rank, const HostMap& map, Network& network, uint64_t channel) {
  for (Rank r = 0; r < map.size(); ++r) {
    if (r != rank) post(network, map, r, rank, own_channel(channel), std::string(1, static_cast<char>(Word::declines)));
  }
}

void Agreement::forget(Network& network, uint64_t channel) noexcept { network.close(own_channel(channel)); }

bool Agreement::advance() {
  while (const auto came = network_->take(channel_)) {
    const auto prefix = prefix_of(came->bytes);
    const bool fits = prefix && map_->has(prefix->source) && map_->process_of(prefix->source) == came->from;
    if (fits) take(prefix->source, rest_of(came->bytes));
  }
  if (committed_) return true;
  const auto before = members();
  const bool agreed = agree();
  if (agreed) {
    faultpoint("commit");
    committed_ = true;
  }
  if (agreed || !proposed_ || members() != before) propose(agreed);
  if (agreed) faultpoint("committed");
  return agreed;
}

void Agreement::take(Rank from, std::string_view text) {
  RankState& them = state(from);
  if (text.empty() || them.committed) return;
  const auto word = static_cast<Word>(text[0]);
  them.declined |= word == Word::declines;
  // Whoever commits has the cards of all members. This rank may not have heard of them all.
  const bool commits = word == Word::commits;
  const size_t first = commits ? 0 : static_cast<size_t>(from), cards = commits ? ranks_.size() : 1;
  if (text.size() != 1 + cards * sizeof(GroupCard) + ranks_.size()) return;
  std::vector<bool> proposed;
  for (const char in : text.substr(text.size() - ranks_.size())) proposed.push_back(in == '1');
  for (size_t i = 0; i < cards; ++i) {
    if (!proposed[first + i] || first + i == static_cast<size_t>(rank_)) continue;
    std::memcpy(&ranks_[first + i].card, text.data() + 1 + i * sizeof(GroupCard), sizeof(GroupCard));
  }
  const auto count = [](const std::vector<bool>& ranks) { return std::ranges::count(ranks, true); };
  them.committed = commits;
  // Messages may overtake each other. Sets only get smaller, so the smallest is the latest.
  if (them.committed || them.set.empty() || count(proposed) < count(them.set)) them.set = std::move(proposed);
}

bool Agreement::is_out(Rank rank) const {
  const RankState& them = ranks_[static_cast<size_t>(rank)];
  return them.declined || network_->lost(map_->process_of(rank));
}

// Looks at all ranks once. Removes some where it must. Returns whether all members agree.
bool Agreement::agree() {
  bool agreed = true;
  for (Rank r = 0; r < map_->size(); ++r) {
    if (r == rank_ || !state(r).in) continue;
    const RankState& them = state(r);
    const bool has_me = !them.set.empty() && them.set[static_cast<size_t>(rank_)];
    if (them.committed && has_me) {
      for (size_t i = 0; i < ranks_.size(); ++i) ranks_[i].in = them.set[i];
      return true;
    }
    if (is_out(r)) {
      state(r).in = false;
      agreed = false;
      continue;
    }
    for (size_t i = 0; i < ranks_.size(); ++i) {
      agreed = agreed && !them.set.empty() && them.set[i] == ranks_[i].in;
      if (has_me && !them.set[i]) ranks_[i].in = false;
    }
  }
  return agreed && proposed_;
}

void Agreement::propose(bool committed) {
  proposed_ = true;
  std::string text(1, static_cast<char>(committed ? Word::commits : Word::proposes));
  for (Rank r = 0; r < map_->size(); ++r) {
    if (committed || r == rank_) text += object_bytes(state(r).card);
  }
  for (const RankState& one : ranks_) text += one.in ? '1' : '0';
  faultpoint("propose");
  // Those that are out hear it, too: one may live, and has been removed by another.
  for (Rank r = 0; r < map_->size(); ++r) {
    if (r != rank_) post(*network_, *map_, r, rank_, channel_, text);
  }
}

std::vector<Rank> Agreement::members() const {
  std::vector<Rank> members;
  for (Rank r = 0; r < map_->size(); ++r) {
    if (r == rank_ || ranks_[static_cast<size_t>(r)].in) members.push_back(r);
  }
  return members;
}

std::string Agreement::undecided() const {
  std::string text;
  for (Rank r = 0; r < map_->size(); ++r) {
    const RankState& them = ranks_[static_cast<size_t>(r)];
    if (r == rank_ || !them.in) continue;
    bool same = !them.set.empty();
    for (size_t i = 0; same && i < ranks_.size(); ++i) same = them.set[i] == ranks_[i].in;
    if (!same) text += (text.empty() ? "rank " : ", rank ") + std::to_string(r);
  }
  return text;
}

}  // namespace a2a::hosts
