#include "core/stages/choose.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "core/stages/ring.h"

namespace a2a {
namespace {

constexpr size_t kNever = SIZE_MAX;
// One more exchange pays off when it saves at least this many bytes between hosts.
constexpr size_t kWorthStages = size_t{128} << 10;
// The limit for an allreduce of two ranks on two hosts. Parts save folds there, but no bytes between hosts.
constexpr size_t kMostToFold = size_t{512} << 10;
// From so many hosts on, and so many bytes for each, an allreduce goes around a ring.
constexpr int kHostsForRing = 8;
constexpr size_t kBytesForRing = size_t{1} << 20;

size_t divided(size_t bytes, size_t by) { return by == 0 ? kNever : bytes / by; }

// Returns how many times fewer a rank's part crosses between hosts if it goes once to each host, rather than once to
// each rank of other hosts.
size_t times_saved(Rank rank, const Topology& topology) {
  const size_t elsewhere = topology.host.size() - topology.ranks_of(topology.host_of(rank)).size();
  return elsewhere - (static_cast<size_t>(topology.hosts()) - 1);
}

// From so many bytes of each rank's part on.
size_t of_each_rank(const Topology& topology) {
  size_t times = 0;
  for (Rank rank = 0; rank < topology.size(); ++rank) times += times_saved(rank, topology);
  return divided(kWorthStages, times);
}
size_t of_root(const Topology& topology) { return divided(kWorthStages, times_saved(0, topology)); }
// The root's link carries all bytes once rather than once for each other host, which costs one more exchange.
size_t of_root_in_parts(const Topology& topology) {
  return topology.hosts() < 3 ? kNever : 2 * kWorthStages / static_cast<size_t>(topology.hosts() - 2);
}
size_t of_allreduce_in_parts(const Topology& topology) { return most_at_once(topology) + 1; }
size_t of_ring(const Topology& topology) {
  const int hosts = topology.hosts();
  return hosts < kHostsForRing || hosts > kMostHostsOfRing ? kNever : kBytesForRing * static_cast<size_t>(hosts);
}

// The last line of an operation that holds is chosen.
struct Line {
  Op op;
  Stages stages;
  size_t (*from)(const Topology&);  // in bytes; nullptr: from none on
  const char* reason;
};

constexpr const char* kOnce =
    "few bytes travel with the arguments that all ranks compare, so more stages only add waits";
constexpr const char* kFirst = "only one part of each host goes to other hosts: its ranks fold theirs before";
constexpr const char* kLast = "bytes come to each host once, in pieces, and its ranks pass the pieces on";
constexpr const char* kRootSends = "the root's link carries all bytes once, rather than once for each other host";

constexpr Line kTable[] = {
    {Op::allreduce, Stages::at_once, nullptr, kOnce},
    {Op::allreduce, Stages::in_parts, of_allreduce_in_parts, kFirst},
    {Op::allreduce, Stages::ring, of_ring, "each host only sends to the next one: many senders would share its link"},
    {Op::reduce_scatter, Stages::at_once, nullptr, kOnce},
    {Op::reduce_scatter, Stages::host_first, of_each_rank, kFirst},
    {Op::reduce, Stages::at_once, nullptr, kOnce},
    {Op::reduce, Stages::host_first, of_root, kFirst},
    {Op::reduce, Stages::in_parts, of_root_in_parts, kRootSends},
    {Op::broadcast, Stages::at_once, nullptr, kOnce},
    {Op::broadcast, Stages::host_first, of_root, kLast},
    {Op::broadcast, Stages::in_parts, of_root_in_parts, kRootSends},
    {Op::allgather, Stages::at_once, nullptr, kOnce},
    {Op::allgather, Stages::host_first, of_each_rank, kLast},
    {Op::scan, Stages::at_once, nullptr, "each rank has other elements for every other"},
};

Op kind_of(Op op) {
  if (op == Op::allgatherv) return Op::allgather;
  return op == Op::exscan ? Op::scan : op;
}

}  // namespace

const char* to_string(Stages stages) {
  constexpr const char* kNames[] = {"at once", "host first", "in parts", "ring"};
  return kNames[static_cast<size_t>(stages)];
}

size_t most_at_once(const Topology& topology) {
  size_t times = 0;  // the number of times that all bytes go between hosts
  for (const int host : topology.host) times += topology.host.size() - topology.ranks_of(host).size();
  const size_t in_parts = 2 * (static_cast<size_t>(topology.hosts()) - 1);
  return times > in_parts ? kWorthStages / (times - in_parts) : kMostToFold;
}

Stages choose_stages(Op op, std::span<const size_t> parts, const Topology& topology) {
  const bool each = kind_of(op) == Op::reduce_scatter || kind_of(op) == Op::allgather;
  size_t bytes = std::accumulate(parts.begin(), parts.end(), size_t{0});
  if (each) {  // parts that save more count for more
    size_t saved = 0, times = 0;
    for (Rank rank = 0; rank < topology.size(); ++rank) {
      saved += parts[static_cast<size_t>(rank)] * times_saved(rank, topology);
      times += times_saved(rank, topology);
    }
    bytes = times == 0 ? 0 : saved / times;
  }
  Stages chosen = Stages::at_once;
  for (const Line& line : kTable) {
    if (line.op == kind_of(op) && (line.from == nullptr || bytes >= line.from(topology))) chosen = line.stages;
  }
  return chosen;
}

std::vector<StageChoice> choices_between(const Topology& topology) {
  std::vector<StageChoice> choices;
  for (const Line& line : kTable) {
    const size_t from = line.from == nullptr ? 0 : line.from(topology);
    if (from != kNever) choices.push_back({to_string(line.op), to_string(line.stages), from, line.reason});
  }
  return choices;
}

std::vector<StageChoice> choices_within(int size, size_t at_once) {
  std::vector<StageChoice> choices = {
      {to_string(Op::allreduce), to_string(Stages::at_once), 0, "each rank waits for the others once"}};
  if (size == 1) return choices;
  choices.push_back({to_string(Op::allreduce), to_string(Stages::in_parts), at_once + 1,
                     "each rank folds a part and sends it to the others, which is fewer bytes"});
  return choices;
}

std::vector<StageChoice> stage_choices(const std::vector<int>& hosts) {
  const Topology topology(hosts);
  if (topology.hosts() > 1) return choices_between(topology);
  throw Error(Code::invalid_argument,
              "hosts names " + std::to_string(topology.hosts()) + " hosts; at least 2 are needed");
}

}  // namespace a2a
