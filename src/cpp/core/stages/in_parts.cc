#include "core/stages/in_parts.h"

#include "core/stages/host_first.h"
#include "core/stages/segments.h"

namespace a2a {
namespace {

using namespace stages;

size_t at(Rank rank) { return static_cast<size_t>(rank); }

// The root and the buffer of a broadcast: what the root sends, or what others receive.
Segment whole_of(const Plan& plan) { return plan.sends().empty() ? plan.recvs().front() : plan.sends().front(); }

Rank root_of_broadcast(const Plan& plan) { return plan.sends().empty() ? plan.recvs().front().peer : plan.rank(); }

// Divides a buffer among hosts, and each host's part among its ranks. `without`: a host that gets nothing, or -1.
std::vector<Segment> divide(const Segment& whole, const Topology& topology, int without, size_t unit) {
  std::vector<Segment> pieces(at(topology.size()));
  const size_t hosts = static_cast<size_t>(topology.hosts()) - (without >= 0 ? 1 : 0);
  size_t index = 0;
  for (int host = 0; host < topology.hosts(); ++host) {
    if (host == without) continue;
    const size_t begin = begin_of(index, hosts, whole.bytes, unit);
    const size_t bytes = begin_of(++index, hosts, whole.bytes, unit) - begin;
    const auto& ranks = topology.ranks_of(host);
    for (size_t i = 0; i < ranks.size(); ++i) {
      const size_t first = begin_of(i, ranks.size(), bytes, unit);
      pieces[at(ranks[i])] = part(whole, begin + first, begin_of(i + 1, ranks.size(), bytes, unit) - first);
    }
  }
  return pieces;
}

std::vector<size_t> bytes_of(const std::vector<Segment>& pieces) {
  std::vector<size_t> bytes;
  for (const Segment& piece : pieces) bytes.push_back(piece.bytes);
  return bytes;
}

}  // namespace

void append_broadcast_in_parts(std::vector<Stage>& stages, const Plan& plan, const Topology& topology) {
  const Rank rank = plan.rank(), root = root_of_broadcast(plan);
  const Segment whole = whole_of(plan);
  const int home = topology.host_of(root);
  const std::vector<Segment> pieces = divide(whole, topology, home, kLine);  // of the buffer, by carrier
  const bool carries = topology.host_of(rank) != home;
  Stage scatter, gather;  // the second one as if it were one stage
  for (Rank peer = 0; peer < topology.size(); ++peer) {
    if (topology.host_of(peer) == home) {
      if (rank == root && peer != root) append(gather.sends, peer, whole);
      continue;
    }
    if (rank == root) append(scatter.sends, peer, pieces[at(peer)]);
    if (!carries || peer == rank) continue;
    append(gather.sends, peer, in(Space::received, pieces[at(rank)]));
    append(gather.recvs, peer, pieces[at(peer)]);
  }
  if (carries) append(scatter.recvs, root, pieces[at(rank)]);
  if (!carries && rank != root) append(gather.recvs, root, whole);
  stages.push_back(std::move(scatter));
  append_host_last(stages, {gather, rank, bytes_of(pieces), home}, topology, Reach::network);
}

size_t append_reduce_in_parts(std::vector<Stage>& stages, const Plan& plan, const Topology& topology, size_t unit) {
  const Rank rank = plan.rank(), root = plan.sends().front().peer;
  const Segment input = plan.sends().front();
  const std::vector<Segment> pieces = divide(input, topology, -1, unit);
  const size_t own = pieces[at(rank)].bytes;
  Stage scatter, gather;  // the first one as if it were one stage
  scatter.sink = Sink::fold;
  for (Rank peer = 0; peer < topology.size(); ++peer) {
    const Segment& piece = pieces[at(peer)];
    append(scatter.sends, peer, piece);
    append(scatter.recvs, peer, {rank, 0, 0, own, 0, Space::scratch});
    if (rank == root) append(gather.recvs, peer, part(plan.recvs().front(), piece.offset - input.offset, piece.bytes));
  }
  append(gather.sends, root, {root, 0, 0, own, 0, Space::scratch});
  const size_t scratch = append_host_first(stages, parts_of(scatter, rank, topology), topology, unit, own);
  stages.push_back(std::move(gather));
  return scratch;
}

}  // namespace a2a
