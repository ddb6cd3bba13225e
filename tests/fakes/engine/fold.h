// Arithmetic of reductions: element by element, in rank order. Numbers of less than 32 bits are folded as float and
// rounded once, as a2a.testing does, so that tests may compare bits; real libraries round more often.
#pragma once

#include <vector>

#include "engine/mesh.h"

namespace fake {

enum class Number {
  int8,
  uint8,
  int16,
  int32,
  uint32,
  int64,
  uint64,
  float16,
  bfloat16,
  float32,
  float64,
  float8e4m3,
  float8e5m2,
};
enum class FoldOp { sum, prod, max, min, avg };

// A part of each rank is received into memory of its own; when all are there, `then` writes what they fold to.
struct Folding {
  std::vector<Part> recvs;
  std::function<void()> then;
};
// `header` is that of each part.
Folding folding(const Region& output, Number number, FoldOp op, int ranks, const Header& header);

}  // namespace fake
