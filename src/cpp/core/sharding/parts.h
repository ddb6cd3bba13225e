// Which ranks have which parts of a tensor. Pure functions. Not public.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "a2a/sharding.h"

namespace a2a {

// The parts of a tensor in one sharding.
class Parts {
 public:
  // Ranks that have the same box. Each copy has all of it: one rank, or the ranks whose terms are folded, in order.
  struct Cell {
    Box box;
    std::vector<std::vector<Rank>> copies;
  };
  // The ranks that have a box, in order.
  struct Group {
    Box box;
    std::vector<Rank> ranks;
  };

  // Throws Error(invalid_argument), with `name` in the text, where the sharding does not fit the shape or the size.
  Parts(const char* name, const Sharding& sharding, std::span<const int64_t> shape, int size);

  // By rank; nullopt where it is not in the mesh.
  const std::vector<std::optional<Box>>& boxes() const { return boxes_; }
  // Disjoint cells that have all elements of the tensor. Throws Error(invalid_argument) where elements are missing.
  std::vector<Cell> cells() const;
  // Boxes that are not empty, which may overlap.
  std::vector<Group> groups() const;

 private:
  const char* name_;
  const Sharding& sharding_;
  std::span<const int64_t> shape_;
  std::vector<std::optional<Box>> boxes_;
};

}  // namespace a2a
