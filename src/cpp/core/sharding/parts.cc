#include "core/sharding/parts.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "core/sharding/boxes.h"
#include "core/sharding/sharding_state.h"

namespace a2a {
namespace {

[[noreturn]] void refuse_part(const char* name, const std::string& text) {
  sharding::refuse(std::string(name) + ": " + text);
}

// Divides overlapping boxes into disjoint cells, each with all ranks that have it.
std::vector<Parts::Cell> disjoint(const std::vector<Parts::Group>& groups) {
  std::vector<Parts::Cell> cells;
  for (const Parts::Group& group : groups) {
    std::vector<Box> rest = {group.box};
    for (size_t i = 0, before = cells.size(); i < before && !rest.empty(); ++i) {
      if (!sharding::meet(cells[i].box, group.box)) continue;
      const Box both = sharding::common(cells[i].box, group.box);
      for (Box& outside : sharding::without(cells[i].box, both)) cells.push_back({std::move(outside), cells[i].copies});
      cells[i].box = both;
      for (const Rank rank : group.ranks) cells[i].copies.push_back({rank});
      std::vector<Box> left;
      for (const Box& box : rest) {
        for (Box& part : sharding::without(box, both)) left.push_back(std::move(part));
      }
      rest = std::move(left);
    }
    for (Box& box : rest) {
      cells.push_back({std::move(box), {}});
      for (const Rank rank : group.ranks) cells.back().copies.push_back({rank});
    }
  }
  return cells;
}

// Whether two copies have their ranks in the same order, so that both are folded alike.
bool same_order(const std::vector<Rank>& a, const std::vector<Rank>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if ((a[k] < a[i]) != (b[k] < b[i])) return false;
    }
  }
  return true;
}

}  // namespace

Parts::Parts(const char* name, const Sharding& sharding, std::span<const int64_t> shape, int size)
    : name_(name), sharding_(sharding), shape_(shape), boxes_(static_cast<size_t>(size)) {
  if (sharding.least_size() > size) {
    refuse_part(name, "it names rank " + std::to_string(sharding.least_size() - 1) + ", but the group has " +
                          std::to_string(size) + " ranks");
  }
  try {
    for (Rank rank = 0; rank < size; ++rank) boxes_[static_cast<size_t>(rank)] = sharding.box(rank, shape);
  } catch (const Error& error) {
    refuse_part(name, error.what());
  }
}

std::vector<Parts::Group> Parts::groups() const {
  std::vector<Group> groups;
  std::map<std::pair<std::vector<int64_t>, std::vector<int64_t>>, size_t> known;
  for (size_t rank = 0; rank < boxes_.size(); ++rank) {
    if (!boxes_[rank] || sharding::is_empty(*boxes_[rank])) continue;
    const Box& box = *boxes_[rank];
    const auto [found, is_new] = known.try_emplace({box.begin, box.end}, groups.size());
    if (is_new) groups.push_back({box, {}});
    groups[found->second].ranks.push_back(static_cast<Rank>(rank));
  }
  return groups;
}

std::vector<Parts::Cell> Parts::cells() const {
  std::vector<Cell> cells;
  const std::vector<Group> all = groups();
  const auto sum = [](const auto& parts) {
    return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                           [](int64_t elems, const auto& part) { return elems + part.box.elems(); });
  };
  const int64_t elems = sharding::whole(shape_).elems();
  if (const Sharding::Mesh* const mesh = sharding_.state_->mesh()) {
    for (const Group& group : all) cells.push_back({group.box, mesh->copies(group.ranks)});
    for (Cell& cell : cells) {
      for (std::vector<Rank>& copy : cell.copies) {
        if (!same_order(copy, cell.copies[0])) copy.clear();
      }
      std::erase_if(cell.copies, [](const std::vector<Rank>& copy) { return copy.empty(); });
      for (std::vector<Rank>& copy : cell.copies) std::ranges::sort(copy);
    }
  } else {
    cells = disjoint(all);
  }
  if (const int64_t found = sum(cells); found != elems) {
    refuse_part(name_,
                "it has " + std::to_string(found) + " of the " + std::to_string(elems) + " elements of the tensor");
  }
  return cells;
}

}  // namespace a2a
