// Arithmetic on quantised numbers in host memory, between the two exchanges of a quantised all-reduce. No input or
// output, no threads. Compilers can turn the loops into vector instructions.
//
// A quantised number is an int8 q. With a scale s and an offset o it means (q + o) * s; in blocks, which have a scale
// of their own and no offset, it means q * s.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "a2a/types.h"

namespace a2a {

// IEEE half and bfloat16 as bit patterns. The conversion to float is exact. The conversion from float rounds to
// nearest, ties to even, overflows to infinity and keeps NaN a NaN.
A2A_API void to_float(const uint16_t* half, size_t elems, float* out);
A2A_API void to_half(const float* in, size_t elems, uint16_t* half);
A2A_API void bfloat16_to_float(const uint16_t* bfloat16, size_t elems, float* out);
A2A_API void to_bfloat16(const float* in, size_t elems, uint16_t* bfloat16);

// out[i] = (sum_r parts[r * elems + i] + ranks * offset[c]) * scale[c]. The sum is exact (int32); the rest is float32.
// scale and offset have one entry, or one for each channel: c = (first + i) % entries.
A2A_API void dequantize_sum(std::span<const int8_t> parts, size_t ranks, size_t elems, std::span<const float> scale,
                            std::span<const float> offset, size_t first, float* out);

// The number of blocks; the last one may be short.
inline size_t blocks_of(size_t elems, size_t block) { return elems / block + (elems % block != 0); }

// Per block: s = max |x| / 127 (1 for a block of zeros), q = x / s rounded to nearest, ties to even. A block with an
// infinity or a NaN gets the scale NaN, so that its result is NaN too.
A2A_API void quantize_blocks(const float* in, size_t elems, size_t block, int8_t* q, float* scales);

// out[i] = sum_r q[r * elems + i] * scales[r * blocks + i / block] in float32, ranks in rising order.
A2A_API void dequantize_blocks_sum(std::span<const int8_t> q, std::span<const float> scales, size_t ranks, size_t elems,
                                   size_t block, float* out);

}  // namespace a2a
