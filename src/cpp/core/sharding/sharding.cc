#include "a2a/sharding.h"

#include <algorithm>
#include <map>
#include <string>

#include "core/sharding/boxes.h"
#include "core/sharding/sharding_state.h"

namespace a2a {
namespace {

std::string tuple_of(std::span<const int64_t> numbers) {
  std::string text = "(";
  for (size_t i = 0; i < numbers.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(numbers[i]);
  return text + (numbers.size() == 1 ? ",)" : ")");
}

// Returns the dimension that a placement divides.
size_t divided_dim(const Placement& placement, size_t dims) {
  const int64_t dim = placement.dim < 0 ? placement.dim + static_cast<int64_t>(dims) : placement.dim;
  if (dim < 0 || dim >= static_cast<int64_t>(dims)) {
    sharding::refuse("it divides dimension " + std::to_string(placement.dim) + " of a tensor of " +
                     std::to_string(dims) + " dimensions");
  }
  return static_cast<size_t>(dim);
}

// Leaves part `index` of `count` of the entries, as torch.chunk.
void leave_chunk(int64_t& begin, int64_t& end, int64_t index, int64_t count) {
  const int64_t entries = end - begin, each = entries / count + (entries % count != 0 ? 1 : 0);
  const int64_t first = index > 0 && each > entries / index ? entries : std::min(entries, index * each);
  end = begin + first + std::min(each, entries - first);
  begin += first;
}

}  // namespace

std::vector<int64_t> Sharding::Mesh::coordinates(int64_t at) const {
  std::vector<int64_t> coordinates(shape.size());
  for (size_t axis = shape.size(); axis-- > 0; at /= shape[axis]) coordinates[axis] = at % shape[axis];
  return coordinates;
}

// Those along the replicated axes tell copies apart. Empty parts have no copies, so all ranks differ in these axes and
// in partial ones alone.
std::vector<std::vector<Rank>> Sharding::Mesh::copies(std::span<const Rank> with_same_part) const {
  std::map<std::vector<int64_t>, std::vector<std::pair<int64_t, Rank>>> copies;
  for (const Rank rank : with_same_part) {
    const int64_t at = place[static_cast<size_t>(rank)];
    std::vector<int64_t> along = coordinates(at);
    for (size_t axis = 0; axis < along.size(); ++axis) {
      if (placements[axis].kind == Placement::Kind::partial) along[axis] = 0;
    }
    copies[along].emplace_back(at, rank);
  }
  std::vector<std::vector<Rank>> result;
  for (auto& [along, terms] : copies) {
    std::ranges::sort(terms);
    auto& copy = result.emplace_back();
    for (const auto& [at, rank] : terms) copy.push_back(rank);
  }
  return result;
}

Sharding Sharding::mesh(std::vector<int64_t> mesh_shape, std::vector<Rank> ranks, std::vector<Placement> placements) {
  int64_t count = 1;
  for (const int64_t entries : mesh_shape) {
    if (entries < 1 || __builtin_mul_overflow(count, entries, &count)) {
      sharding::refuse("the mesh has the shape " + tuple_of(mesh_shape));
    }
  }
  if (count != static_cast<int64_t>(ranks.size())) {
    sharding::refuse("the mesh of shape " + tuple_of(mesh_shape) + " has " + std::to_string(ranks.size()) + " ranks");
  }
  if (placements.size() != mesh_shape.size()) {
    sharding::refuse("there are " + std::to_string(placements.size()) + " placements for " +
                     std::to_string(mesh_shape.size()) + " axes of the mesh; pass one for each");
  }
  Fold fold = Fold::none;
  for (const Placement& placement : placements) {
    if (placement.kind != Placement::Kind::partial) continue;
    if (placement.fold == Fold::none || (fold != Fold::none && fold != placement.fold)) {
      sharding::refuse("the partial axes of a mesh need one and the same operation");
    }
    fold = placement.fold;
  }
  Mesh mesh{std::move(mesh_shape), std::move(ranks), std::move(placements), {}};
  for (size_t i = 0; i < mesh.ranks.size(); ++i) {
    const Rank rank = mesh.ranks[i];
    if (rank < 0) sharding::refuse("the mesh names rank " + std::to_string(rank));
    const auto at = static_cast<size_t>(rank);
    if (mesh.place.size() <= at) mesh.place.resize(at + 1, -1);
    if (mesh.place[at] >= 0) sharding::refuse("the mesh names rank " + std::to_string(rank) + " twice");
    mesh.place[at] = static_cast<int64_t>(i);
  }
  return Sharding(std::make_shared<const State>(State{std::move(mesh)}));
}

Sharding Sharding::boxes(std::vector<std::optional<Box>> boxes) {
  while (!boxes.empty() && !boxes.back()) boxes.pop_back();
  return Sharding(std::make_shared<const State>(State{std::move(boxes)}));
}

std::optional<Box> Sharding::box(Rank rank, std::span<const int64_t> shape) const {
  const auto at = static_cast<size_t>(rank);
  if (const Mesh* const mesh = state_->mesh()) {
    Box box = sharding::whole(shape);
    const bool inside = rank >= 0 && at < mesh->place.size() && mesh->place[at] >= 0;
    int64_t rest = inside ? mesh->place[at] : 0;
    int64_t below = static_cast<int64_t>(mesh->ranks.size());  // ranks of one entry of the axis
    for (size_t axis = 0; axis < mesh->shape.size(); ++axis) {
      below /= mesh->shape[axis];
      const int64_t index = rest / below;
      rest %= below;
      if (mesh->placements[axis].kind != Placement::Kind::shard) continue;
      const size_t dim = divided_dim(mesh->placements[axis], shape.size());
      leave_chunk(box.begin[dim], box.end[dim], index, mesh->shape[axis]);
    }
    return inside ? std::optional(std::move(box)) : std::nullopt;
  }
  if (rank < 0 || at >= state_->boxes().size() || !state_->boxes()[at]) return std::nullopt;
  const Box& box = *state_->boxes()[at];
  bool fits = box.begin.size() == shape.size() && box.end.size() == shape.size();
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    fits = 0 <= box.begin[i] && box.begin[i] <= box.end[i] && box.end[i] <= shape[i];
  }
  if (!fits) {
    sharding::refuse("the box of rank " + std::to_string(rank) + ", from " + tuple_of(box.begin) + " to " +
                     tuple_of(box.end) + ", does not lie in a tensor of shape " + tuple_of(shape));
  }
  return box;
}

Fold Sharding::fold() const {
  const Mesh* const mesh = state_->mesh();
  for (size_t axis = 0; mesh != nullptr && axis < mesh->shape.size(); ++axis) {
    if (mesh->placements[axis].kind == Placement::Kind::partial && mesh->shape[axis] > 1) {
      return mesh->placements[axis].fold;
    }
  }
  return Fold::none;
}

int Sharding::least_size() const {
  const Mesh* const mesh = state_->mesh();
  return static_cast<int>(mesh != nullptr ? mesh->place.size() : state_->boxes().size());
}

}  // namespace a2a
