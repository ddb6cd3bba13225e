// a2a/quantize.h with pointers and lengths. The callers check all lengths.
#pragma once

#include <cstddef>
#include <cstdint>

#include "a2a/quantize.h"

namespace a2a_py {

inline void dequantize_sum(const int8_t* parts, size_t ranks, size_t elems, const float* scale, size_t scales,
                           const float* offset, size_t offsets, size_t first, float* out) {
  a2a::dequantize_sum({parts, ranks * elems}, ranks, elems, {scale, scales}, {offset, offsets}, first, out);
}

inline void dequantize_blocks_sum(const int8_t* q, const float* scales, size_t ranks, size_t elems, size_t block,
                                  float* out) {
  a2a::dequantize_blocks_sum({q, ranks * elems}, {scales, ranks * a2a::blocks_of(elems, block)}, ranks, elems, block,
                             out);
}

}  // namespace a2a_py
