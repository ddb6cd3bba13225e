#include "transport/hosts/relay.h"

#include <algorithm>
#include <cstring>

namespace a2a::hosts {
namespace {

std::byte* data_of(const std::unique_ptr<char[]>& memory) { return reinterpret_cast<std::byte*>(memory.get()); }

// Whether an exchange in shared memory is finished. Throws its error.
bool finished(const std::shared_ptr<shm::Exchange>& exchange) {
  return exchange->finished() && exchange->wait_until(Deadline::never());
}

}  // namespace

uint32_t relay_limit(const HostMap& map) {
  if (std::ranges::all_of(map.ranks, [](const auto& ranks) { return ranks.size() == 1; })) return 0;
  constexpr size_t kRoom = size_t{128} << 10;  // of one rank, for all others
  const size_t fair = kRoom / static_cast<size_t>(map.size());
  const size_t left = fair > room_for(0) ? fair - room_for(0) : 0;
  return static_cast<uint32_t>(std::min<size_t>(map.limits.aggregate, left / 8 * 8));
}

Relay::Relay(Rank rank, std::shared_ptr<const HostMap> map, uint64_t channel, std::shared_ptr<Network> network,
             std::unique_ptr<shm::ShmTransport> gather, std::unique_ptr<shm::ShmTransport> scatter)
    : rank_(rank),
      map_(std::move(map)),
      home_(map_->host_of(rank)),
      neighbours_(map_->ranks_of(home_)),
      channel_(channel),
      network_(std::move(network)),
      gather_(std::move(gather)),
      scatter_(std::move(scatter)) {
  for (uint64_t number = 0; number < neighbours_.size(); ++number) {
    duties_.push_back({leaders(&HostMap::sender_of, number), leaders(&HostMap::receiver_of, number)});
  }
}

Error Relay::no_sense(const char* what) const {
  return Error(Code::backend, network_->name() + ": a " + what + " of entries makes no sense");
}

Relay::Leaders Relay::leaders(Rank (HostMap::*of)(int host, int other, uint64_t number) const, uint64_t number) const {
  std::map<Rank, std::vector<int>> by_local_rank;
  for (int host = 0; host < map_->hosts(); ++host) {
    if (host == home_) continue;
    by_local_rank[static_cast<Rank>(map_->local_rank_of((*map_.*of)(home_, host, number)))].push_back(host);
  }
  const size_t entry = room_for(std::max<size_t>(map_->relayed, kLongestRefusal));
  Leaders leaders;
  leaders.with.resize(static_cast<size_t>(map_->hosts()));
  for (const auto& [local_rank, hosts] : by_local_rank) {
    size_t room = kListBytes;
    for (const int host : hosts) {
      leaders.with[static_cast<size_t>(host)] = leaders.all.size();
      room += map_->ranks_of(host).size() * entry;
    }
    leaders.all.push_back({local_rank, hosts, room});
    leaders.room += room;
    if (neighbours_[static_cast<size_t>(local_rank)] == rank_) leaders.mine = leaders.all.back();
  }
  return leaders;
}

Relay::Round& Relay::new_round(const Signature& signature) {
  if (spare_rounds_.empty()) {
    Round& fresh = spare_rounds_.emplace_back();
    size_t from_neighbours = 0, from_receivers = 0;
    for (const Duties& duties : duties_) {
      from_neighbours = std::max(from_neighbours, duties.senders.mine.room * neighbours_.size());
      from_receivers = std::max(from_receivers, duties.receivers.room);
    }
    fresh.to_neighbours.resize(neighbours_.size());
    fresh.from_neighbours = std::make_unique_for_overwrite<char[]>(from_neighbours);
    fresh.from_receivers = std::make_unique_for_overwrite<char[]>(from_receivers);
  }
  // Keeps rounds in order: an operation on a device may pass while earlier ones are not posted yet.
  auto next = rounds_.end();
  while (next != rounds_.begin() && std::prev(next)->signature.number > signature.number) --next;
  rounds_.splice(next, spare_rounds_, spare_rounds_.begin());
  Round& round = *std::prev(next);
  round.signature = signature;
  round.duties = &duties(signature.number);
  round.relays.reset();
  round.gather = round.scatter = nullptr;
  round.bundles.clear();
  round.bundled = round.delivered = false;
  return round;
}

void Relay::post(const Signature& signature, const std::vector<Entry>& entries, bool relays) {
  Round& round = new_round(signature);
  const Leaders& senders = round.duties->senders;
  round.to_senders.resize(senders.all.size());
  for (EntryList& list : round.to_senders) list.clear();
  for (const Entry& entry : entries) {
    round.to_senders[senders.with[static_cast<size_t>(map_->host_of(entry.target))]].append(entry);
  }
  if (relays) round.relays = true;
}

void Relay::pass(const Signature& signature) { new_round(signature).relays = false; }

// Begins rounds in order, each when it is known whether this host relays it.
bool Relay::decide(const Ask& ask, const Unexpected& unexpected) {
  bool moved = false;
  for (Round& round : rounds_) {
    if (round.signature.number <= decided_) continue;
    if (round.signature.number != decided_ + 1) break;  // an earlier one was not posted yet
    if (!round.relays) round.relays = ask(round.signature.number);
    if (!round.relays) break;
    decided_ = round.signature.number;
    moved = true;
    if (*round.relays) {
      start_gather(round);
      continue;
    }
    skip(*gather_, round.signature);
    auto bundles = come_.extract(round.signature.number);
    if (bundles.empty()) continue;
    for (auto& [source, message] : bundles.mapped()) unexpected(round.signature.number, source, std::move(message));
  }
  return moved;
}

void Relay::skip(shm::ShmTransport& transport, const Signature& signature) {
  Batch batch;
  batch.signature = {signature.op, Memory::host, DType{}, signature.number, 0};
  batch.way = Way::pass;
  transport.enqueue(std::move(batch));
}

void Relay::start_gather(Round& round) {
  Batch batch;
  batch.at_most = true;
  const Leaders& senders = round.duties->senders;
  for (size_t i = 0; i < round.to_senders.size(); ++i) {
    round.to_senders[i].append_runs(senders.all[i].local_rank, batch.sends);
  }
  const size_t room = senders.mine.room;
  for (size_t neighbour = 0; neighbour < neighbours_.size() && room > 0; ++neighbour) {
    batch.recvs.push_back({static_cast<Rank>(neighbour), data_of(round.from_neighbours) + neighbour * room, room});
  }
  batch.signature = {round.signature.op, Memory::host, DType{}, round.signature.number, 0};
  round.gather = gather_->enqueue(std::move(batch));
}

bool Relay::wants(uint64_t number) const {
  const auto round = std::ranges::find_if(rounds_, [&](const Round& r) { return r.signature.number == number; });
  return round == rounds_.end() ? number > decided_ : round->relays.value_or(true) && round->scatter == nullptr;
}

void Relay::take(uint64_t number, Rank source, std::string message) { come_[number][source] = std::move(message); }

// Whether each host that this rank receives from has sent a bundle, or that it has none.
bool Relay::complete(uint64_t number) const {
  const auto found = come_.find(number);
  const auto from = [&](int host) {
    const auto here = [host, this](const auto& bundle) { return map_->host_of(bundle.first) == host; };
    return std::ranges::any_of(found->second, here);
  };
  const auto& hosts = duties(number).receivers.mine.hosts;
  return hosts.empty() || (found != come_.end() && std::ranges::all_of(hosts, from));
}

bool Relay::advance(const Deliver& deliver, const Ask& ask, const Unexpected& unexpected) {
  bool moved = decide(ask, unexpected);
  for (Round& round : rounds_) {  // scatters start in order
    if (round.signature.number > decided_) break;
    moved |= step(round, deliver);
    if (!round.delivered && round.scatter == nullptr) break;
  }
  while (!rounds_.empty() && rounds_.front().delivered) {
    spare_rounds_.splice(spare_rounds_.begin(), rounds_, rounds_.begin());
  }
  return moved;
}

bool Relay::step(Round& round, const Deliver& deliver_to) {
  if (round.delivered) return false;
  if (!*round.relays) {
    skip(*scatter_, round.signature);
    round.delivered = true;
    return true;
  }
  bool moved = false;
  if (!round.bundled && hosts::finished(round.gather)) {
    send_bundles(round);
    moved = round.bundled = true;
  }
  // A rank that receives for no host starts its scatter at once, so that no other rank waits for its lines.
  if (round.scatter == nullptr && complete(round.signature.number)) {
    start_scatter(round);
    moved = true;
  }
  if (!round.bundled || round.scatter == nullptr || !hosts::finished(round.scatter)) return moved;
  deliver(round, deliver_to);
  round.delivered = true;
  return true;
}

std::string_view Relay::from_neighbour(const Round& round, size_t neighbour) const {
  const size_t room = round.duties->senders.mine.room;
  return entries_at({round.from_neighbours.get() + neighbour * room, room});
}

void Relay::send_bundles(Round& round) {
  const auto& hosts = round.duties->senders.mine.hosts;
  if (hosts.empty()) return;
  size_t bytes = 0;
  for (size_t neighbour = 0; neighbour < neighbours_.size(); ++neighbour)
    bytes += from_neighbour(round, neighbour).size();
  const Prefix prefix{channel_, MessageKind::bundle, 0, rank_, round.signature.number};
  for (const int host : hosts) {
    std::string bundle = begin_message(prefix, bytes);
    for (size_t neighbour = 0; neighbour < neighbours_.size(); ++neighbour) {
      const std::string_view text = from_neighbour(round, neighbour);
      if (hosts.size() == 1) {
        bundle += text;
        continue;
      }
      const auto entries = entries_of(text);
      if (!entries) throw no_sense("list");
      for (const Entry& entry : *entries) {
        if (map_->has(entry.target) && map_->host_of(entry.target) == host) append(bundle, entry);
      }
    }
    network_->post(map_->process_of(receiver_on(host, round.signature.number)), std::move(bundle));
  }
}

// Sends each neighbour the entries that have come for it.
void Relay::start_scatter(Round& round) {
  const Leaders& receivers = round.duties->receivers;
  const auto& hosts = receivers.mine.hosts;
  for (EntryList& list : round.to_neighbours) list.clear();
  if (auto come = come_.extract(round.signature.number); !come.empty()) round.bundles = std::move(come.mapped());
  bool any = false;
  for (const auto& [sender, message] : round.bundles) {
    const auto entries = entries_of(rest_of(message));
    const bool expected = std::ranges::find(hosts, map_->host_of(sender)) != hosts.end();
    if (!entries || !expected) throw no_sense("bundle");
    any |= !entries->empty();
    for (const Entry& entry : *entries) {
      if (!map_->has(entry.target) || map_->host_of(entry.target) != home_) throw no_sense("bundle");
      round.to_neighbours[map_->local_rank_of(entry.target)].append(entry);
    }
  }
  if (!any) round.bundles.clear();
  Batch batch;
  batch.at_most = true;
  for (size_t neighbour = 0; neighbour < round.to_neighbours.size() && !hosts.empty(); ++neighbour) {
    if (round.to_neighbours[neighbour].bytes() > receivers.mine.room) throw no_sense("bundle");
    round.to_neighbours[neighbour].append_runs(static_cast<Rank>(neighbour), batch.sends);
  }
  std::byte* lists = data_of(round.from_receivers);
  for (const Leader& receiver : receivers.all) {
    batch.recvs.push_back({receiver.local_rank, lists, receiver.room});
    lists += receiver.room;
  }
  batch.signature = {round.signature.op, Memory::host, DType{}, round.signature.number, 0};
  round.scatter = scatter_->enqueue(std::move(batch));
}

void Relay::deliver(Round& round, const Deliver& deliver) {
  const Leaders& receivers = round.duties->receivers;
  const char* list = round.from_receivers.get();
  for (size_t i = 0; i < receivers.all.size(); ++i) {
    const auto entries = entries_of(entries_at({list, receivers.all[i].room}));
    list += receivers.all[i].room;
    if (!entries) throw no_sense("list");
    for (const Entry& entry : *entries) {
      const bool known = map_->has(entry.source) && map_->host_of(entry.source) != home_;
      if (!known || receivers.with[static_cast<size_t>(map_->host_of(entry.source))] != i) throw no_sense("list");
      deliver(round.signature.number, entry);
    }
  }
}

bool Relay::finished(uint64_t number) const { return rounds_.empty() || rounds_.front().signature.number > number; }

bool Relay::served(uint64_t number) const {
  const auto round = std::ranges::find_if(rounds_, [&](const Round& r) { return r.signature.number == number; });
  if (round == rounds_.end() || round->delivered) return true;
  return round->bundled && round->scatter != nullptr && round->scatter->posted() && round->bundles.empty();
}

bool Relay::leads(uint64_t number) const {
  return !duties(number).senders.mine.hosts.empty() || !duties(number).receivers.mine.hosts.empty();
}

// While a neighbour has not handed over its entries, this rank does not look for bundles: a look takes longer than the
// neighbour's turn, and the neighbour may need this CPU.
bool Relay::waits_for_network() const {
  return std::ranges::any_of(rounds_, [](const Round& round) {
    return !round.duties->receivers.mine.hosts.empty() && round.bundled && round.scatter == nullptr;
  });
}

void Relay::fail(const Error& error) {
  gather_->break_with(error);
  scatter_->break_with(error);
}

void Relay::leave(Left how, std::string_view why) noexcept {
  gather_->leave(how, why);
  scatter_->leave(how, why);
}

}  // namespace a2a::hosts
