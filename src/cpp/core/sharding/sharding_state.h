// What a Sharding is made of. Not public.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "a2a/sharding.h"

namespace a2a {

struct Sharding::Mesh {
  std::vector<int64_t> shape;
  std::vector<Rank> ranks;  // in C order
  std::vector<Placement> placements;
  std::vector<int64_t> place;  // by rank: its place in `ranks`; -1: none

  // The coordinates of a place, by axis.
  std::vector<int64_t> coordinates(int64_t place) const;
  // Divides ranks that have the same part into those that have all terms of it.
  std::vector<std::vector<Rank>> copies(std::span<const Rank> with_same_part) const;
};

struct Sharding::State {
  std::variant<Mesh, std::vector<std::optional<Box>>> kind;

  const Mesh* mesh() const { return std::get_if<Mesh>(&kind); }
  const std::vector<std::optional<Box>>& boxes() const { return std::get<1>(kind); }
};

}  // namespace a2a
