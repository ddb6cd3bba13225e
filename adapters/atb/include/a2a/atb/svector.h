// ATB's list of tensors: a vector that holds at most 256 elements.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

namespace a2a::atb {

constexpr size_t MAX_SVECTOR_SIZE = 256;

struct MaxSizeExceeded : std::length_error {
  explicit MaxSizeExceeded(size_t size)
      : std::length_error("SVector: " + std::to_string(size) + " elements, but it holds at most " +
                          std::to_string(MAX_SVECTOR_SIZE)) {}
};

// Throws MaxSizeExceeded instead of growing beyond 256 elements, and std::out_of_range for an index at or beyond
// size(), with [] too. Unlike ATB's, reserve() keeps the elements and resize() makes new ones with T().
template <class T>
class SVector {
 public:
  SVector() = default;
  SVector(std::initializer_list<T> list) { *this = list; }
  explicit SVector(size_t size, const T& value = T()) : items_(require(size), value) {}
  SVector& operator=(std::initializer_list<T> list) {
    require(list.size());
    items_ = list;
    return *this;
  }

  size_t size() const noexcept { return items_.size(); }
  bool empty() const noexcept { return items_.empty(); }
  T& operator[](size_t i) { return items_.at(i); }
  const T& operator[](size_t i) const { return items_.at(i); }
  T& at(size_t i) { return items_.at(i); }
  const T& at(size_t i) const { return items_.at(i); }
  T* data() noexcept { return items_.data(); }
  const T* data() const noexcept { return items_.data(); }
  T* begin() noexcept { return data(); }
  const T* begin() const noexcept { return data(); }
  T* end() noexcept { return data() + size(); }
  const T* end() const noexcept { return data() + size(); }

  void push_back(const T& value) { insert(size(), value); }
  void insert(size_t at, const T& value) {
    if (at > size())
      throw std::out_of_range("SVector: insert at " + std::to_string(at) + " of " + std::to_string(size()));
    require(size() + 1);
    items_.insert(items_.begin() + static_cast<std::ptrdiff_t>(at), value);
  }
  void resize(size_t size) { items_.resize(require(size)); }
  void reserve(size_t size) { items_.reserve(require(size)); }
  void clear() noexcept { items_.clear(); }

  bool operator==(const SVector&) const = default;

 private:
  static size_t require(size_t size) {
    if (size > MAX_SVECTOR_SIZE) throw MaxSizeExceeded(size);
    return size;
  }

  std::vector<T> items_;
};

}  // namespace a2a::atb
