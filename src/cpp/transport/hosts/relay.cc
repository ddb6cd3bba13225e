#include "transport/hosts/relay.h"

#include <algorithm>
#include <cstring>

namespace a2a::hosts {
namespace {

// The part of a buffer that carries the entries of one host: their length, then they.
void write_part(std::byte* part, std::string_view entries) {
  const uint64_t length = entries.size();
  std::memcpy(part, &length, sizeof(length));
  std::memcpy(part + sizeof(length), entries.data(), entries.size());
}

std::string_view read_part(const std::byte* part, size_t room) {
  uint64_t length = 0;
  std::memcpy(&length, part, sizeof(length));
  if (length > room - sizeof(length)) return {};
  return {reinterpret_cast<const char*>(part + sizeof(length)), length};
}

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
    others_.push_back(host);
    if (leader_of(home_, host) == rank_) led_.push_back(host);
  }
}

// Spread over the ranks of the host. Those of one pair of hosts need not have the same place on both.
Rank Relay::leader_of(int host, int other) const {
  const auto& ranks = places_->ranks_of(host);
  return ranks[static_cast<size_t>(other) % ranks.size()];
}

// Bytes that carry the entries between one rank of this host and all of another.
size_t Relay::room(int host) const {
  return sizeof(uint64_t) + places_->ranks_of(host).size() * room_for(places_->limits.aggregate);
}

size_t Relay::rooms() const {
  size_t bytes = 0;
  for (const int host : others_) bytes += room(host);
  return bytes;
}

void Relay::post(const Signature& signature, const std::vector<Entry>& entries) {
  Round& round = rounds_.emplace_back(Round{signature, {}, {}, {}, {}, nullptr, nullptr});
  std::map<int, std::string> texts;
  for (const Entry& entry : entries) append(texts[places_->host_of(entry.target)], entry);
  round.gather_send.resize(rooms());
  Batch batch;
  std::byte* part = round.gather_send.data();
  for (const int host : others_) {
    write_part(part, texts[host]);
    const auto leader = static_cast<Rank>(places_->seat_of(leader_of(home_, host)));
    batch.sends.push_back({leader, part, room(host)});
    part += room(host);
  }
  std::ranges::stable_sort(batch.sends, {}, &Run::peer);

  size_t bytes = 0;
  for (const int host : led_) bytes += room(host);
  round.gather_recv.resize(bytes * mates_.size());
  part = round.gather_recv.data();
  for (Rank mate = 0; mate < static_cast<Rank>(mates_.size()); ++mate) {
    for (const int host : led_) {
      batch.recvs.push_back({mate, part, room(host)});
      part += room(host);
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
  while (!rounds_.empty() && rounds_.front().delivered) rounds_.pop_front();
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
  std::map<int, std::string> texts;
  const std::byte* part = round.gather_recv.data();
  for (size_t mate = 0; mate < mates_.size(); ++mate) {
    for (const int host : led_) {
      texts[host] += read_part(part, room(host));
      part += room(host);
    }
  }
  const Prefix prefix{channel_, Kind::bundle, rank_, round.signature.number};
  for (const int host : led_) {
    network_->post(places_->endpoint_of(leader_of(host, home_)), message(prefix, texts[host]));
  }
}

// A part for each mate and each of the hosts led here, with that host's entries for the mate.
void Relay::start_scatter(Round& round) {
  Batch batch;
  size_t bytes = 0;
  for (const int host : led_) bytes += room(host);
  round.scatter_send.resize(bytes * mates_.size());
  std::map<std::pair<Rank, int>, std::string> texts;  // by target and host
  const auto bundles = give_back(round.signature.number);
  for (const auto& [sender, text] : bundles) {
    const int host = places_->host_of(sender);
    const auto entries = entries_of(text);
    if (!entries) throw Error(Code::backend, network_->name() + ": a bundle of entries makes no sense");
    for (const Entry& entry : *entries) append(texts[{entry.target, host}], entry);
  }
  std::byte* part = round.scatter_send.data();
  for (Rank mate = 0; mate < static_cast<Rank>(mates_.size()); ++mate) {
    for (const int host : led_) {
      const std::string& text = texts[{mates_[static_cast<size_t>(mate)], host}];
      if (text.size() > room(host) - sizeof(uint64_t)) {
        throw Error(Code::backend, network_->name() + ": a bundle of entries is too long");
      }
      write_part(part, text);
      batch.sends.push_back({mate, part, room(host)});
      part += room(host);
    }
  }
  round.scatter_recv.resize(rooms());
  part = round.scatter_recv.data();
  for (const int host : others_) {
    batch.recvs.push_back({static_cast<Rank>(places_->seat_of(leader_of(home_, host))), part, room(host)});
    part += room(host);
  }
  std::ranges::stable_sort(batch.recvs, {}, &Run::peer);
  batch.signature = {Op::exchange, Memory::host, DType{}, round.signature.number, 0};
  round.scatter = scatter_->enqueue(std::move(batch));
}

void Relay::deliver(Round& round, const Deliver& deliver) {
  const std::byte* part = round.scatter_recv.data();
  for (const int host : others_) {
    const auto entries = entries_of(read_part(part, room(host)));
    if (!entries) throw Error(Code::backend, network_->name() + ": a list of entries makes no sense");
    for (const Entry& entry : *entries) {
      if (places_->has(entry.source) && places_->host_of(entry.source) == host) deliver(round.signature.number, entry);
    }
    part += room(host);
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
