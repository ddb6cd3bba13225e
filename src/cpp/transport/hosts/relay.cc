#include "transport/hosts/relay.h"

#include <algorithm>
#include <cstring>

namespace a2a::hosts {
namespace {

// What goes to one rank is a part for each host, in the order of the hosts: the length of its entries, then they.
void append_part(std::string& parts, std::string_view entries) {
  const uint64_t length = entries.size();
  parts.append(reinterpret_cast<const char*>(&length), sizeof(length));
  parts.append(entries);
}

// The entries of the first part, which is taken off.
std::string_view take_part(std::string_view& parts) {
  uint64_t length = 0;
  if (parts.size() < sizeof(length)) return {};
  std::memcpy(&length, parts.data(), sizeof(length));
  parts.remove_prefix(sizeof(length));
  const std::string_view entries = parts.substr(0, length);
  parts.remove_prefix(entries.size());
  return entries;
}

std::byte* bytes_of(std::string& text) { return reinterpret_cast<std::byte*>(text.data()); }
std::byte* bytes_of(std::vector<char>& buffer) { return reinterpret_cast<std::byte*>(buffer.data()); }

// The outcome of an exchange in shared memory.
bool finished(const std::shared_ptr<shm::Exchange>& exchange) {
  return exchange->finished() && exchange->wait_until(Deadline::never());
}

}  // namespace

uint32_t entry_limit(const Places& places) {
  constexpr size_t kRoom = size_t{64} << 10;  // of one rank, for all others
  const size_t fair = kRoom / static_cast<size_t>(places.size());
  const size_t left = fair > room_for(0) ? fair - room_for(0) : 0;
  return static_cast<uint32_t>(std::min<size_t>(places.limits.aggregate, left / 8 * 8));
}

Relay::Relay(Rank rank, std::shared_ptr<const Places> places, uint64_t channel, std::shared_ptr<Network> network,
             std::unique_ptr<shm::ShmTransport> gather, std::unique_ptr<shm::ShmTransport> scatter)
    : rank_(rank),
      places_(std::move(places)),
      home_(places_->host_of(rank)),
      mates_(places_->ranks_of(home_)),
      channel_(channel),
      network_(std::move(network)),
      gather_(std::move(gather)),
      scatter_(std::move(scatter)) {
  for (int host = 0; host < places_->hosts(); ++host) {
    if (host == home_) continue;
    const Rank leader = leader_of(home_, host);
    leaders_[static_cast<Rank>(places_->seat_of(leader))].push_back(host);
    if (leader == rank_) led_.push_back(host);
  }
}

Error Relay::no_sense(const char* what) const {
  return Error(Code::backend, network_->name() + ": a " + what + " of entries makes no sense");
}

// Spread over the ranks of the host. Those of one pair of hosts need not have the same place on both.
Rank Relay::leader_of(int host, int other) const {
  const auto& ranks = places_->ranks_of(host);
  return ranks[static_cast<size_t>(other) % ranks.size()];
}

// The most bytes of the parts between one rank of this host and all of those.
size_t Relay::room(std::span<const int> hosts) const {
  size_t bytes = 0;
  for (const int host : hosts) {
    bytes += sizeof(uint64_t) + places_->ranks_of(host).size() * room_for(places_->limits.aggregate);
  }
  return bytes;
}

Relay::Round& Relay::new_round(const Signature& signature) {
  if (spare_rounds_.empty()) {
    Round& fresh = spare_rounds_.emplace_back();
    fresh.to_leaders.resize(leaders_.size());
    fresh.to_mates.resize(led_.empty() ? 0 : mates_.size());
    fresh.from_mates.resize(room(led_) * mates_.size());
    size_t bytes = 0;
    for (const auto& [_, hosts] : leaders_) bytes += room(hosts);
    fresh.from_leaders.resize(bytes);
  }
  rounds_.splice(rounds_.end(), spare_rounds_, spare_rounds_.begin());
  Round& round = rounds_.back();
  round.signature = signature;
  round.gather = round.scatter = nullptr;
  round.bundled = round.delivered = false;
  return round;
}

// That many empty ones, in memory that is there.
std::vector<std::string>& Relay::texts(size_t count) {
  texts_.resize(count);
  for (std::string& text : texts_) text.clear();
  return texts_;
}

void Relay::post(const Signature& signature, const std::vector<Entry>& entries) {
  Round& round = new_round(signature);
  auto& by_host = texts(static_cast<size_t>(places_->hosts()));
  for (const Entry& entry : entries) append(by_host[static_cast<size_t>(places_->host_of(entry.target))], entry);
  Batch batch;
  batch.at_most = true;
  batch.sends.reserve(leaders_.size());
  auto parts = round.to_leaders.begin();
  for (const auto& [seat, hosts] : leaders_) {
    parts->clear();
    for (const int host : hosts) append_part(*parts, by_host[static_cast<size_t>(host)]);
    batch.sends.push_back({seat, bytes_of(*parts), parts->size()});
    ++parts;
  }
  if (const size_t bytes = room(led_); bytes > 0) {
    batch.recvs.reserve(mates_.size());
    for (size_t mate = 0; mate < mates_.size(); ++mate) {
      batch.recvs.push_back({static_cast<Rank>(mate), bytes_of(round.from_mates) + mate * bytes, bytes});
    }
  }
  batch.signature = {Op::exchange, Memory::host, DType{}, signature.number, 0};
  round.gather = gather_->enqueue(std::move(batch));
}

void Relay::pass(const Signature& signature) {
  for (const auto* side : {&gather_, &scatter_}) {
    Batch batch;
    batch.signature = {Op::exchange, Memory::host, DType{}, signature.number, 0};
    batch.way = Way::pass;
    (*side)->enqueue(std::move(batch));
  }
}

void Relay::take(uint64_t number, Rank source, std::string entries) { bundles_[number][source] = std::move(entries); }

std::map<Rank, std::string> Relay::give_back(uint64_t number) {
  auto found = bundles_.extract(number);
  return found.empty() ? std::map<Rank, std::string>() : std::move(found.mapped());
}

bool Relay::advance(const Deliver& deliver) {
  bool moved = false;
  bool in_order = true;  // scatters start in order
  for (Round& round : rounds_) {
    if (!in_order) break;
    moved |= step(round, deliver);
    in_order = round.scatter != nullptr;
  }
  while (!rounds_.empty() && rounds_.front().delivered) {
    spare_rounds_.splice(spare_rounds_.begin(), rounds_, rounds_.begin());
  }
  return moved;
}

bool Relay::step(Round& round, const Deliver& deliver_to) {
  if (round.delivered) return false;
  if (!round.bundled) {
    if (!hosts::finished(round.gather)) return false;
    send_bundles(round);
    round.bundled = true;
  }
  if (round.scatter == nullptr) {
    const auto here = bundles_.find(round.signature.number);
    const size_t arrived = here == bundles_.end() ? 0 : here->second.size();
    if (arrived < led_.size()) return false;
    start_scatter(round);
    return true;
  }
  if (!hosts::finished(round.scatter)) return false;
  deliver(round, deliver_to);
  round.delivered = true;
  return true;
}

void Relay::send_bundles(Round& round) {
  auto& by_host = texts(led_.size());
  const size_t bytes = room(led_);
  for (size_t mate = 0; mate < mates_.size() && bytes > 0; ++mate) {
    std::string_view parts(round.from_mates.data() + mate * bytes, bytes);
    for (std::string& text : by_host) text += take_part(parts);
  }
  const Prefix prefix{channel_, Kind::bundle, rank_, round.signature.number};
  for (size_t i = 0; i < led_.size(); ++i) {
    network_->post(places_->endpoint_of(leader_of(led_[i], home_)), message(prefix, by_host[i]));
  }
}

// To each mate a part for each of the hosts led here, with that host's entries for the mate.
void Relay::start_scatter(Round& round) {
  const size_t hosts = led_.size();
  auto& by_target = texts(mates_.size() * hosts);  // for each mate a text of each of the hosts led here
  const auto bundles = give_back(round.signature.number);
  for (const auto& [sender, text] : bundles) {
    const auto entries = entries_of(text);
    const auto led = std::ranges::find(led_, places_->host_of(sender));
    if (!entries || led == led_.end()) throw no_sense("bundle");
    for (const Entry& entry : *entries) {
      if (!places_->has(entry.target) || places_->host_of(entry.target) != home_) throw no_sense("bundle");
      append(by_target[places_->seat_of(entry.target) * hosts + static_cast<size_t>(led - led_.begin())], entry);
    }
  }
  Batch batch;
  batch.at_most = true;
  batch.sends.reserve(round.to_mates.size());
  for (size_t mate = 0; mate < round.to_mates.size(); ++mate) {
    std::string& parts = round.to_mates[mate];
    parts.clear();
    for (size_t i = 0; i < hosts; ++i) append_part(parts, by_target[mate * hosts + i]);
    if (parts.size() > room(led_)) throw no_sense("bundle");
    batch.sends.push_back({static_cast<Rank>(mate), bytes_of(parts), parts.size()});
  }
  batch.recvs.reserve(leaders_.size());
  std::byte* parts = bytes_of(round.from_leaders);
  for (const auto& [seat, from] : leaders_) {
    batch.recvs.push_back({seat, parts, room(from)});
    parts += room(from);
  }
  batch.signature = {Op::exchange, Memory::host, DType{}, round.signature.number, 0};
  round.scatter = scatter_->enqueue(std::move(batch));
}

void Relay::deliver(Round& round, const Deliver& deliver) {
  const char* from = round.from_leaders.data();
  for (const auto& [_, hosts] : leaders_) {
    std::string_view parts(from, room(hosts));
    from += room(hosts);
    for (const int host : hosts) {
      const auto entries = entries_of(take_part(parts));
      if (!entries) throw no_sense("list");
      for (const Entry& entry : *entries) {
        if (places_->has(entry.source) && places_->host_of(entry.source) == host) {
          deliver(round.signature.number, entry);
        }
      }
    }
  }
}

bool Relay::finished(uint64_t number) const { return rounds_.empty() || rounds_.front().signature.number > number; }

bool Relay::waits_for_network() const {
  return std::ranges::any_of(rounds_, [this](const Round& round) { return !led_.empty() && round.scatter == nullptr; });
}

void Relay::fail(const Error& error) {
  gather_->break_with(error);
  scatter_->break_with(error);
}

void Relay::leave(Left how) noexcept {
  gather_->leave(how);
  scatter_->leave(how);
}

}  // namespace a2a::hosts
