#include "transport/hosts/host_map.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>

#include "runtime/environment.h"
#include "runtime/object_bytes.h"
#include "transport/shm/policy/machine.h"

namespace a2a::hosts {
namespace {

// Returns this rank's entry of A2A_HOSTS.
std::string assigned_host(Rank rank, int size) {
  const std::string text = variable("A2A_HOSTS").value_or("");
  if (text.empty()) return "";
  const auto entries = std::ranges::count(text, ',') + 1;
  if (entries != size) {
    throw Error(Code::invalid_argument, "A2A_HOSTS=" + text + " names the hosts of " + std::to_string(entries) +
                                            " ranks, there are " + std::to_string(size));
  }
  if (("," + text + ",").find(",,") != std::string::npos) {
    throw Error(Code::invalid_argument, "A2A_HOSTS=" + text + " has an empty name");
  }
  size_t begin = 0;
  for (Rank r = 0; r < rank; ++r) begin = text.find(',', begin) + 1;
  return "assigned " + text.substr(begin, text.find(',', begin) - begin);
}

std::string own_machine() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  return boot_id;
}

// The prefix of a reason that a rank sends instead of a card.
const std::string kRefused = "refused: ";

struct Card {
  uint32_t version = 9;
  Rank rank = 0;
  Limits limits;
  char host[96] = {}, machine[40] = {};
};

Card own_card(Rank rank, int size, const std::optional<std::string>& known_host) {
  shm::check_variables();
  Card card;
  const Limits defaults;
  card.rank = rank;
  constexpr uint64_t kMost = uint64_t{1} << 28;
  const auto given = bytes_variable("A2A_AGGREGATE_MAX", 0, kMost);
  card.limits = {static_cast<uint32_t>(given.value_or(defaults.aggregate))};
  const std::string assigned = known_host ? *known_host : assigned_host(rank, size);
  const std::string host = assigned.empty() ? own_host() : assigned;
  if (host.size() >= sizeof(card.host)) throw Error(Code::invalid_argument, "A2A_HOSTS: " + host + " is too long");
  host.copy(card.host, sizeof(card.host) - 1);
  own_machine().copy(card.machine, sizeof(card.machine) - 1);
  return card;
}

}  // namespace

std::string own_host() {
  struct stat network{};
  ::stat("/proc/self/ns/net", &network);
  return own_machine() + " " + std::to_string(network.st_ino);
}

size_t HostMap::local_rank_of(Rank rank) const {
  const auto& neighbours = ranks_of(host_of(rank));
  return static_cast<size_t>(std::ranges::find(neighbours, rank) - neighbours.begin());
}

size_t HostMap::on_machine_of(Rank rank) const {
  return static_cast<size_t>(std::ranges::count(machine, machine[static_cast<size_t>(rank)]));
}

// The duties are spread over the ranks, and move to other ranks with each operation. Ranks that share a CPU may each be
// in a scheduling group of their own (MPICH's launcher makes a session for each). Then all get the same share of the
// CPU, yielding does not change it, and the busiest rank sets the pace. The two ends of a pair of hosts need not have
// the same local_rank.
Rank HostMap::sender_of(int home, int other, uint64_t number) const {
  const auto& neighbours = ranks_of(home);
  return neighbours[(static_cast<size_t>(other) + number) % neighbours.size()];
}

Rank HostMap::receiver_of(int home, int other, uint64_t number) const {
  const auto& neighbours = ranks_of(home);
  return neighbours[(static_cast<size_t>(other) + number + neighbours.size() / 2) % neighbours.size()];
}

HostMap HostMap::of(std::span<const Rank> members) const {
  HostMap part;
  part.limits = limits;
  std::map<int, int> numbers;  // of the hosts, in this group and in the new one
  for (size_t i = 0; i < members.size(); ++i) {
    const int there = numbers.emplace(host_of(members[i]), static_cast<int>(numbers.size())).first->second;
    part.ranks.resize(numbers.size());
    part.host.push_back(there);
    part.process.push_back(process_of(members[i]));
    part.machine.push_back(machine[static_cast<size_t>(members[i])]);
    part.ranks[static_cast<size_t>(there)].push_back(static_cast<Rank>(i));
  }
  return part;
}

HostMap make_host_map(Rank rank, int size, Bootstrap& bootstrap, Deadline deadline) {
  std::optional<Error> failure;
  std::string mine;
  try {
    const Card card = own_card(rank, size, bootstrap.host());
    mine.assign(object_bytes(card));
  } catch (const Error& error) {
    failure = error;
    mine = kRefused + error.what();
  }
  const auto all = bootstrap.allgather(mine, deadline);
  if (failure) throw *failure;
  if (all.size() != static_cast<size_t>(size)) {
    throw Error(Code::invalid_argument, "the bootstrap has " + std::to_string(all.size()) +
                                            " ranks, but this is rank " + std::to_string(rank) + " of " +
                                            std::to_string(size));
  }
  HostMap map;
  std::map<std::string, int> numbers, machines;
  for (Rank r = 0; r < size; ++r) {
    Card card;
    const std::string& text = all.at(static_cast<size_t>(r));
    if (text.size() == sizeof(card)) std::memcpy(&card, text.data(), sizeof(card));
    if (text.starts_with(kRefused)) {
      throw Error(Code::mismatch, "rank " + std::to_string(r) + " cannot join: " + text.substr(kRefused.size()));
    }
    if (text.size() != sizeof(card) || card.version != Card().version) {
      throw Error(Code::unsupported, "rank " + std::to_string(r) + " runs another version of this library");
    }
    if (card.rank != r) {
      throw Error(Code::mismatch,
                  "rank " + std::to_string(r) + " of the bootstrap was started as rank " + std::to_string(card.rank));
    }
    card.host[sizeof(card.host) - 1] = card.machine[sizeof(card.machine) - 1] = '\0';
    const int number = numbers.emplace(card.host, static_cast<int>(numbers.size())).first->second;
    map.ranks.resize(numbers.size());
    map.host.push_back(number);
    map.machine.push_back(machines.emplace(card.machine, static_cast<int>(machines.size())).first->second);
    map.process.push_back(r);
    map.ranks[static_cast<size_t>(number)].push_back(r);
    if (r == 0) map.limits = card.limits;
  }
  return map;
}

}  // namespace a2a::hosts
