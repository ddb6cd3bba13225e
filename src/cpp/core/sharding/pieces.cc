#include "core/sharding/pieces.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "core/sharding/boxes.h"

namespace a2a::sharding {
namespace {

bool has(std::span<const Rank> ranks, Rank rank) { return std::ranges::find(ranks, rank) != ranks.end(); }

// A box that a rank wants, before it is known who sends it.
struct Demand {
  Box box;
  Rank to;
  std::vector<Rank> then;
};

constexpr int kAll = -1;
// By the host whose copies serve them; kAll: all copies.
using Demands = std::map<int, std::vector<Demand>>;

class Distributor {
 public:
  Distributor(const Parts::Cell& cell, const Distribution& distribution, Rank rank)
      : cell_(cell), d_(distribution), rank_(rank) {
    for (const Copy& copy : cell.copies) copies_[kAll].push_back(&copy);
    if (d_.folds || d_.topology.hosts() == 1) return;
    for (const Copy& copy : cell.copies) copies_[d_.topology.host_of(copy[0])].push_back(&copy);
  }

  std::vector<Piece> pieces() {
    // Without a choice of copies, what others want does not matter to a rank that has no part of the cell.
    const bool concerns_all = cell_.copies.size() > 1 || copy_with(rank_) != nullptr;
    for (const Parts::Group& group : d_.wanted) {
      if (!meet(cell_.box, group.box) || !(concerns_all || has(group.ranks, rank_))) continue;
      const Box box = common(cell_.box, group.box);
      concerns_all || d_.folds ? demand(box, group.ranks) : demand(box, near(group.ranks));
    }
    for (const auto& [host, demands] : demands_) serve(copies_[host], demands);
    return std::move(pieces_);
  }

 private:
  using Copy = std::vector<Rank>;

  const Copy* copy_with(Rank rank) const {
    const auto found = std::ranges::find_if(cell_.copies, [rank](const Copy& copy) { return has(copy, rank); });
    return found == cell_.copies.end() ? nullptr : &*found;
  }

  // The ranks with which this one may share a piece, itself included.
  Copy near(std::span<const Rank> ranks) const {
    if (d_.topology.hosts() == 1) return {rank_};
    Copy near;
    std::ranges::copy_if(ranks, std::back_inserter(near), [&](Rank r) { return d_.topology.share_host(r, rank_); });
    return near;
  }

  void demand(const Box& box, std::span<const Rank> ranks) {
    if (d_.folds && d_.passes_on) return divide(box, ranks);
    if (d_.folds) {
      for (const Rank rank : ranks) demands_[kAll].push_back({box, rank, {}});
      return;
    }
    std::map<int, std::vector<Rank>> lacking;  // by host
    for (const Rank rank : ranks) {
      if (const Copy* const own = copy_with(rank)) {
        pieces_.push_back({box, *own, rank, {}});
      } else {
        lacking[d_.topology.host_of(rank)].push_back(rank);
      }
    }
    const bool one_host = d_.topology.hosts() == 1;
    for (const auto& [host, here] : lacking) {
      const bool has_copy = !one_host && copies_.contains(host);
      if (one_host || has_copy || !d_.passes_on) {
        for (const Rank rank : here) demands_[has_copy ? host : kAll].push_back({box, rank, {}});
      } else {
        divide(box, here);
      }
    }
  }

  // Gives each rank a piece that it passes on to the others.
  void divide(const Box& box, std::span<const Rank> ranks) {
    const Cutter cutter(box, ranks.size(), d_.elem_bytes);
    const auto elems = static_cast<uint64_t>(box.elems());
    int64_t from = 0;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const size_t at = (i + d_.turn) % ranks.size();  // small boxes are not cut: each one goes to another rank
      const int64_t to = i + 1 == ranks.size() ? cutter.entries() : cutter.entry(share(elems, i + 1, ranks.size()));
      if (to <= from) continue;
      Copy then(ranks.begin(), ranks.end());
      then.erase(then.begin() + static_cast<ptrdiff_t>(at));
      demands_[kAll].push_back({cutter.part(from, to), ranks[at], std::move(then)});
      from = to;
    }
  }

  // Cuts the demands, one after the other, into equal stretches, one for each copy.
  void serve(std::span<const Copy* const> copies, std::span<const Demand> demands) {
    const size_t count = copies.size();
    uint64_t total = 0, before = 0;
    for (const Demand& one : demands) total += static_cast<uint64_t>(one.box.elems());
    size_t copy = 0;
    for (const Demand& one : demands) {
      const auto elems = static_cast<uint64_t>(one.box.elems());
      const Cutter cutter(one.box, count, d_.elem_bytes);
      for (int64_t from = 0; from < cutter.entries();) {
        const uint64_t end = share(total, copy + 1, count);  // of the stretch of this copy
        const bool cuts = copy + 1 < count && end < before + elems;
        const int64_t to = cuts ? cutter.entry(end > before ? end - before : 0) : cutter.entries();
        const Copy& sender = *copies[(copy + d_.turn) % count];
        if (to > from) pieces_.push_back({cutter.part(from, to), sender, one.to, one.then});
        from = std::max(from, to);
        if (cuts) ++copy;
      }
      before += elems;
      if (copy + 1 < count && before >= share(total, copy + 1, count)) ++copy;
    }
  }

  static uint64_t share(uint64_t total, size_t i, size_t count) {
    return total / count * i + total % count * i / count;
  }

  const Parts::Cell& cell_;
  const Distribution& d_;
  const Rank rank_;
  std::map<int, std::vector<const Copy*>> copies_;
  Demands demands_;
  std::vector<Piece> pieces_;
};

}  // namespace

std::vector<Piece> pieces_of(const Parts::Cell& cell, const Distribution& distribution, Rank rank) {
  return Distributor(cell, distribution, rank).pieces();
}

}  // namespace a2a::sharding
