#include "core/stages/host_first.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/stages/segments.h"
#include "core/stages/shares.h"

namespace a2a {
namespace {

using stages::append;
using stages::in;
using stages::with;

void append(std::vector<Segment>& to, Rank peer, const Segment& whole, const Piece& piece) {
  append(to, peer, stages::part(whole, piece.offset, piece.bytes));
}

// The pieces that pass through a rank, and those of its own part.
class Pieces {
 public:
  Pieces(const PartsOfStage& parts, const Topology& topology, size_t unit) : rank_(parts.rank), topology_(topology) {
    for (int host = 0; host < topology.hosts(); ++host) {
      shares_.push_back(host == parts.without ? std::vector<Piece>() : shares(topology, host, parts.bytes, unit));
    }
  }

  // Those that this rank of this host carries, in the order of their owners.
  std::vector<Piece> carried(Rank neighbour) const {
    std::vector<Piece> pieces;
    std::ranges::copy_if(shares_[home()], std::back_inserter(pieces),
                         [&](const Piece& piece) { return piece.carrier == neighbour; });
    return pieces;
  }

  // Those of this rank's part on another host, in the order of their carriers.
  std::vector<Piece> owned(int host) const {
    std::vector<Piece> pieces;
    std::ranges::copy_if(shares_[static_cast<size_t>(host)], std::back_inserter(pieces),
                         [&](const Piece& piece) { return piece.owner == rank_; });
    return pieces;
  }

 private:
  size_t home() const { return static_cast<size_t>(topology_.host_of(rank_)); }

  Rank rank_;
  const Topology& topology_;
  std::vector<std::vector<Piece>> shares_;  // by host
};

// Returns the part that a rank sends to all others.
Segment sent_to_all(const Stage& stage, Rank rank, const Topology& topology) {
  const auto far = [&](const Segment& s) { return !topology.share_host(s.peer, rank); };
  const auto found = std::ranges::find_if(stage.sends, far);
  return found != stage.sends.end() ? *found : Segment{};
}

}  // namespace

PartsOfStage parts_of(const Stage& stage, Rank rank, const Topology& topology) {
  PartsOfStage parts{stage, rank, std::vector<size_t>(static_cast<size_t>(topology.size()))};
  const bool folds = stage.sink == Sink::fold;
  for (const Segment& s : folds ? stage.sends : stage.recvs) parts.bytes[static_cast<size_t>(s.peer)] = s.bytes;
  if (!folds) parts.bytes[static_cast<size_t>(rank)] = sent_to_all(stage, rank, topology).bytes;
  return parts;
}

std::vector<FoldPart> parts_by_host(const Stage& stage, const Topology& topology) {
  std::vector<FoldPart> parts(static_cast<size_t>(topology.hosts()));
  for (const Segment& s : stage.recvs) parts[static_cast<size_t>(topology.host_of(s.peer))].from.push_back(s.peer);
  for (FoldPart& part : parts) part.times = part.from.size();
  std::erase_if(parts, [](const FoldPart& part) { return part.from.empty(); });
  return parts;
}

size_t append_host_first(std::vector<Stage>& stages, const PartsOfStage& parts, const Topology& topology, size_t unit,
                         size_t scratch) {
  const Rank rank = parts.rank;
  const auto& neighbours = topology.ranks_of(topology.host_of(rank));
  const Pieces pieces(parts, topology, unit);
  const auto mine = pieces.carried(rank);
  const bool alone = neighbours.size() == 1;  // then its share is sent from the input
  const auto sent = [&](Rank owner) { return with(parts.stage.sends, owner); };
  const size_t own = parts.bytes[static_cast<size_t>(rank)];
  const auto in_scratch = [&](size_t bytes) {
    return Segment{rank, 0, std::exchange(scratch, scratch + bytes), bytes, 0, Space::scratch};
  };

  Stage here, between;
  here.sink = between.sink = Sink::fold;
  here.reach = Reach::host;
  between.reach = Reach::network;
  std::vector<Segment> folded = {in_scratch(own)};  // this rank's own part, and its share
  for (size_t i = 0; i < mine.size() && !alone; ++i) folded.push_back(in_scratch(mine[i].bytes));
  for (const Rank neighbour : neighbours) {
    append(here.sends, neighbour, sent(neighbour));
    for (const Piece& piece : alone ? std::vector<Piece>() : pieces.carried(neighbour)) {
      append(here.sends, neighbour, sent(piece.owner), piece);
    }
    for (const Segment& segment : folded) append(here.recvs, neighbour, segment);
  }
  for (size_t i = 0; i < mine.size(); ++i) {
    if (alone) {
      append(between.sends, mine[i].owner, sent(mine[i].owner), mine[i]);
    } else {
      append(between.sends, mine[i].owner, folded[i + 1]);
    }
  }
  if (own > 0) {
    const Segment output = with(parts.stage.recvs, rank);
    append(between.sends, rank, folded[0]);
    append(between.recvs, rank, output);
    for (int host = 0; host < topology.hosts(); ++host) {
      FoldPart part{{}, topology.ranks_of(host).size()};
      if (host == topology.host_of(rank)) part.from.push_back(rank);
      for (const Piece& piece : host == topology.host_of(rank) ? std::vector<Piece>() : pieces.owned(host)) {
        append(between.recvs, piece.carrier, output, piece);
        part.from.push_back(piece.carrier);
      }
      between.parts.push_back(std::move(part));
    }
  }
  stages::sort_by_peer(between);
  stages.push_back(std::move(here));
  stages.push_back(std::move(between));
  return scratch;
}

void append_host_last(std::vector<Stage>& stages, const PartsOfStage& parts, const Topology& topology, Reach first) {
  const Rank rank = parts.rank;
  const auto& neighbours = topology.ranks_of(topology.host_of(rank));
  const Pieces pieces(parts, topology, stages::kLine);
  const Segment own = sent_to_all(parts.stage, rank, topology);
  const auto received = [&](Rank owner) { return with(parts.stage.recvs, owner); };

  Stage between, here;
  between.reach = first;
  here.reach = Reach::host;
  for (int host = 0; host < topology.hosts(); ++host) {
    if (host == topology.host_of(rank)) continue;
    for (const Piece& piece : pieces.owned(host)) append(between.sends, piece.carrier, own, piece);
  }
  for (const Piece& piece : pieces.carried(rank)) append(between.recvs, piece.owner, received(piece.owner), piece);
  stages::sort_by_peer(between);

  for (const Rank neighbour : neighbours) {
    append(here.sends, neighbour, with(parts.stage.sends, neighbour));
    append(here.recvs, neighbour, received(neighbour));
    if (neighbour == rank) continue;
    for (const Piece& piece : pieces.carried(rank)) {
      append(here.sends, neighbour, in(Space::received, received(piece.owner)), piece);
    }
    for (const Piece& piece : pieces.carried(neighbour)) append(here.recvs, neighbour, received(piece.owner), piece);
  }
  stages.push_back(std::move(between));
  stages.push_back(std::move(here));
}

}  // namespace a2a
