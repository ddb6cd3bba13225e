// Tensors with gaps, and their elements one by one.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "a2a/strides.h"
#include "check.h"
#include "core/schedule.h"

namespace strided_test {

using namespace a2a;
using check::Note;
using check::Random;
using Bytes = std::vector<std::byte>;

inline constexpr std::byte kGap{0xA5};

inline size_t at(int64_t i) { return static_cast<size_t>(i); }

// A tensor with gaps, anywhere in a buffer.
struct Tensor {
  std::vector<int64_t> shape, strides;
  size_t elem_bytes;
  Bytes memory;
  size_t first = 0;  // the offset of element (0, 0, ...) in the buffer

  TensorLayout layout(int axis = 0, bool compares = false) const {
    return {shape, strides, elem_bytes, axis, compares};
  }
  std::byte* data() { return memory.data() + first; }
  size_t elems() const {
    return std::accumulate(shape.begin(), shape.end(), size_t{1}, [](size_t n, int64_t d) { return n * at(d); });
  }
  size_t bytes() const { return elems() * elem_bytes; }

  // Returns the offset of each element in the buffer, in C order.
  std::vector<size_t> places() const {
    std::vector<size_t> places;
    std::vector<int64_t> index(shape.size());
    for (size_t left = elems(); left > 0; --left) {
      int64_t place = static_cast<int64_t>(first);
      for (size_t i = 0; i < index.size(); ++i) place += index[i] * strides[i];
      places.push_back(at(place));
      for (size_t i = index.size(); i-- > 0;) {
        if (++index[i] < shape[i]) break;
        index[i] = 0;
      }
    }
    return places;
  }

  Bytes packed() const {
    Bytes result;
    for (const size_t place : places()) {
      result.insert(result.end(), memory.begin() + static_cast<ptrdiff_t>(place),
                    memory.begin() + static_cast<ptrdiff_t>(place + elem_bytes));
    }
    return result;
  }

  void fill(Random& random) {
    for (const size_t place : places()) {
      for (size_t i = 0; i < elem_bytes; ++i) memory[place + i] = static_cast<std::byte>(random());
    }
  }
};

// Makes a tensor whose dimensions have that order in memory, outermost first. Negative steps run backwards.
inline Tensor make_tensor(std::vector<int64_t> shape, const std::vector<size_t>& order,
                          const std::vector<int64_t>& steps, size_t elem_bytes, size_t before = 0) {
  Tensor tensor{std::move(shape), std::vector<int64_t>(order.size()), elem_bytes, {}};
  int64_t below = static_cast<int64_t>(elem_bytes), first = static_cast<int64_t>(before * elem_bytes);
  for (size_t k = order.size(); k-- > 0;) {
    const size_t i = order[k];
    tensor.strides[i] = steps[i] * below;
    if (steps[i] < 0) first += (std::max<int64_t>(tensor.shape[i], 1) - 1) * -tensor.strides[i];
    below *= std::max<int64_t>(tensor.shape[i], 1) * std::abs(steps[i]);
  }
  tensor.memory.assign(at(below) + 2 * before * elem_bytes, kGap);
  tensor.first = at(first);
  return tensor;
}

inline Tensor random_tensor(Random& random, size_t dims, int64_t most, size_t elem_bytes) {
  std::vector<int64_t> shape(dims), steps(dims);
  std::vector<size_t> order(dims);
  for (int64_t& entries : shape) entries = random.in(int64_t{1}, most);
  for (int64_t& step : steps) step = random.chance(0.5) ? 1 : random.chance(0.5) ? random.in(-2, -1) : random.in(2, 3);
  std::iota(order.begin(), order.end(), size_t{0});
  if (random.chance(0.7)) std::ranges::shuffle(order, random);
  Tensor tensor = make_tensor(shape, order, steps, elem_bytes, random.in(size_t{0}, size_t{2}));
  tensor.fill(random);
  return tensor;
}

inline Bytes bytes_of(const Run& run) {
  Bytes bytes(run.bytes);
  gather(run, 0, run.bytes, bytes.data());
  return bytes;
}

inline Bytes part_of(const Bytes& bytes, size_t begin, size_t count) {
  return {bytes.begin() + static_cast<ptrdiff_t>(begin), bytes.begin() + static_cast<ptrdiff_t>(begin + count)};
}

}  // namespace strided_test
