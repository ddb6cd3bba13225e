#include "core/stages/ring.h"

#include <algorithm>

#include "core/stages/segments.h"

namespace a2a {
namespace {

using namespace stages;

// The stages of one rank. Ranks beyond the smallest host's number only fold and pass on within their host.
class Ring {
 public:
  Ring(Rank rank, const Segment& input, const Segment& output, const Topology& topology, size_t unit)
      : rank_(rank),
        input_(input),
        output_(output),
        topology_(topology),
        unit_(unit),
        hosts_(topology.hosts()),
        home_(topology.host_of(rank)),
        stripes_(std::ranges::min(topology.ranks, {}, &std::vector<Rank>::size).size()) {
    const auto& neighbours = topology.ranks_of(home_);
    local_ = static_cast<size_t>(std::ranges::find(neighbours, rank) - neighbours.begin());
    scratch_.push_back(0);
    for (int p = 0; p < hosts_; ++p) scratch_.push_back(scratch_.back() + stripe(p, local_, input_).bytes);
  }

  void append_to(std::vector<Stage>& stages) const {
    stages.push_back(fold_on_host());
    for (int step = 0; step + 1 < hosts_; ++step) stages.push_back(fold_with_previous(step));
    for (int step = 0; step + 1 < hosts_; ++step) stages.push_back(pass_on(step));
    stages.push_back(pass_on_within_host());
  }
  size_t scratch_bytes() const { return scratch_.back(); }

 private:
  int around(int host) const { return (host + hosts_) % hosts_; }
  bool in_ring() const { return local_ < stripes_; }
  Rank next() const { return topology_.ranks_of(around(home_ + 1))[local_]; }
  Rank previous() const { return topology_.ranks_of(around(home_ - 1))[local_]; }

  // Returns a rank's stripe of the part of a host; an empty one for ranks beyond the ring.
  Segment stripe(int host, size_t local, const Segment& whole) const {
    const auto p = static_cast<size_t>(host), count = static_cast<size_t>(hosts_);
    const size_t begin = begin_of(p, count, whole.bytes, unit_),
                 bytes = begin_of(p + 1, count, whole.bytes, unit_) - begin;
    if (local >= stripes_) return part(whole, begin, 0);
    const size_t first = begin_of(local, stripes_, bytes, unit_);
    return part(whole, begin + first, begin_of(local + 1, stripes_, bytes, unit_) - first);
  }
  Segment in_scratch(int host) const {
    const auto p = static_cast<size_t>(host);
    return {rank_, 0, scratch_[p], scratch_[p + 1] - scratch_[p], 0, Space::scratch};
  }
  // Returns the number of ranks on `count` hosts from one on.
  size_t ranks_from(int host, int count) const {
    size_t ranks = 0;
    for (int i = 0; i < count; ++i) ranks += topology_.ranks_of(around(host + i)).size();
    return ranks;
  }

  Stage fold_on_host() const {
    Stage stage;
    stage.sink = Sink::fold;
    stage.reach = Reach::host;
    const auto& neighbours = topology_.ranks_of(home_);
    for (size_t neighbour = 0; neighbour < neighbours.size(); ++neighbour) {
      for (int p = 0; p < hosts_; ++p) {
        append(stage.sends, neighbours[neighbour], stripe(p, neighbour, input_));
        append(stage.recvs, neighbours[neighbour], in_scratch(p));
      }
    }
    return stage;
  }

  Stage fold_with_previous(int step) const {
    Stage stage;
    stage.sink = Sink::fold;
    stage.reach = Reach::network;
    if (!in_ring()) return stage;
    const int sent = around(home_ - step), received = around(home_ - step - 1);
    const bool last = step + 2 == hosts_;  // then the fold is complete
    const Segment folded = last ? stripe(received, local_, output_) : in_scratch(received);
    append(stage.sends, next(), in_scratch(sent));
    if (folded.bytes == 0) return stage;
    append(stage.sends, rank_, in_scratch(received));
    append(stage.recvs, previous(), folded);
    append(stage.recvs, rank_, folded);
    stage.parts = {{{previous()}, ranks_from(received, step + 1)}, {{rank_}, topology_.ranks_of(home_).size()}};
    sort_by_peer(stage);
    return stage;
  }

  Stage pass_on(int step) const {
    Stage stage;
    stage.reach = Reach::network;
    if (!in_ring()) return stage;
    append(stage.sends, next(), in(Space::received, stripe(around(home_ + 1 - step), local_, output_)));
    append(stage.recvs, previous(), stripe(around(home_ - step), local_, output_));
    return stage;
  }

  Stage pass_on_within_host() const {
    Stage stage;
    stage.reach = Reach::host;
    const auto& neighbours = topology_.ranks_of(home_);
    for (size_t neighbour = 0; neighbour < neighbours.size(); ++neighbour) {
      for (int p = 0; p < hosts_ && neighbours[neighbour] != rank_; ++p) {
        append(stage.sends, neighbours[neighbour], in(Space::received, stripe(p, local_, output_)));
        append(stage.recvs, neighbours[neighbour], stripe(p, neighbour, output_));
      }
    }
    return stage;
  }

  const Rank rank_;
  const Segment input_, output_;
  const Topology& topology_;
  const size_t unit_;
  const int hosts_, home_;
  const size_t stripes_;  // of each part: the ranks of the smallest host
  size_t local_ = 0;
  std::vector<size_t> scratch_;  // where this rank's stripes of each part begin
};

}  // namespace

size_t append_ring(std::vector<Stage>& stages, Rank rank, const Segment& input, const Segment& output,
                   const Topology& topology, size_t unit) {
  const Ring ring(rank, input, output, topology, unit);
  ring.append_to(stages);
  return ring.scratch_bytes();
}

}  // namespace a2a
