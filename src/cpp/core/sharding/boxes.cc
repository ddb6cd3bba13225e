#include "core/sharding/boxes.h"

#include <algorithm>

namespace a2a {

int64_t Box::elems() const {
  int64_t elems = 1;
  for (size_t i = 0; i < begin.size(); ++i) elems *= end[i] - begin[i];
  return elems;
}

std::vector<int64_t> Box::shape() const {
  std::vector<int64_t> shape(begin.size());
  for (size_t i = 0; i < begin.size(); ++i) shape[i] = end[i] - begin[i];
  return shape;
}

namespace sharding {

void refuse(const std::string& text) { throw Error(Code::invalid_argument, text); }

Box whole(std::span<const int64_t> shape) {
  return {std::vector<int64_t>(shape.size()), std::vector<int64_t>(shape.begin(), shape.end())};
}

bool is_empty(const Box& box) {
  for (size_t i = 0; i < box.begin.size(); ++i) {
    if (box.begin[i] >= box.end[i]) return true;
  }
  return false;
}

bool meet(const Box& a, const Box& b) {
  for (size_t i = 0; i < a.begin.size(); ++i) {
    if (std::max(a.begin[i], b.begin[i]) >= std::min(a.end[i], b.end[i])) return false;
  }
  return true;
}

Box common(const Box& a, const Box& b) {
  Box box = a;
  for (size_t i = 0; i < a.begin.size(); ++i) {
    box.begin[i] = std::max(a.begin[i], b.begin[i]);
    box.end[i] = std::max(box.begin[i], std::min(a.end[i], b.end[i]));
  }
  return box;
}

bool contains(const Box& outer, const Box& inner) {
  for (size_t i = 0; i < outer.begin.size(); ++i) {
    if (inner.begin[i] < outer.begin[i] || inner.end[i] > outer.end[i]) return false;
  }
  return true;
}

Box within(const Box& box, const Box& outer) {
  Box inner = box;
  for (size_t i = 0; i < box.begin.size(); ++i) {
    inner.begin[i] -= outer.begin[i];
    inner.end[i] -= outer.begin[i];
  }
  return inner;
}

std::vector<Box> without(const Box& box, const Box& hole) {
  if (!meet(box, hole)) return {box};
  std::vector<Box> rest;
  Box left = box;  // what is not cut off yet
  for (size_t i = 0; i < box.begin.size(); ++i) {
    if (left.begin[i] < hole.begin[i]) {
      rest.push_back(left);
      rest.back().end[i] = hole.begin[i];
      left.begin[i] = hole.begin[i];
    }
    if (hole.end[i] < left.end[i]) {
      rest.push_back(left);
      rest.back().begin[i] = hole.end[i];
      left.end[i] = hole.end[i];
    }
  }
  return rest;
}

Cutter::Cutter(const Box& box, size_t parts, size_t elem_bytes) : box_(box) {
  constexpr int64_t kEnough = 8;                   // entries for each part: then no part is much larger than another
  constexpr uint64_t kLeast = uint64_t{16} << 10;  // bytes of a piece: smaller ones cost more than they balance
  for (size_t i = 0; i < box.begin.size(); ++i) {
    const int64_t entries = box.end[i] - box.begin[i];
    if (i == 0 || entries > entries_) dim_ = i, entries_ = entries;
    if (entries >= kEnough * static_cast<int64_t>(parts)) break;
  }
  elems_ = static_cast<uint64_t>(box.elems() / std::max<int64_t>(1, entries_));
  const uint64_t bytes = std::max<uint64_t>(1, elems_ * elem_bytes);
  together_ = std::min(entries_, static_cast<int64_t>((kLeast + bytes - 1) / bytes));
}

int64_t Cutter::entry(uint64_t elems) const {
  const auto nearest = static_cast<int64_t>(elems / elems_);
  return std::min(entries_, (nearest + together_ / 2) / together_ * together_);
}

Box Cutter::part(int64_t from, int64_t to) const {
  Box box = box_;
  if (box.begin.empty()) return box;
  box.end[dim_] = box.begin[dim_] + to;
  box.begin[dim_] += from;
  return box;
}

}  // namespace sharding
}  // namespace a2a
