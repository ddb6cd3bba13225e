#include "a2a/quantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <vector>

#include "core/fold/small_floats.h"

namespace a2a {
namespace {

constexpr size_t kPiece = 2048;  // elements whose sums fit in the L1 cache

using small_floats::kInfinity;
using small_floats::kMagnitude;

// Rounds to nearest, ties to even, for |value| < 2^22: the float sum has no room for a fraction.
float rounded(float value) {
  constexpr float kShift = 0x1.8p23f;
  return (value + kShift) - kShift;
}

float scale_of(const float* in, size_t elems) {
  int32_t most = 0;  // as bits, which have the order of the magnitudes, with NaN above all
  for (size_t i = 0; i < elems; ++i) {
    most = std::max(most, static_cast<int32_t>(std::bit_cast<uint32_t>(in[i]) & kMagnitude));
  }
  if (static_cast<uint32_t>(most) >= kInfinity) return std::numeric_limits<float>::quiet_NaN();
  if (most == 0) return 1;
  // A scale below the normal numbers would be imprecise, or 0. 127 times the largest scale must not be infinite.
  constexpr float kLeast = std::numeric_limits<float>::min();
  constexpr float kMost = std::numeric_limits<float>::max() / 127 * (1 - 0x1p-23f);
  return std::clamp(std::bit_cast<float>(most) / 127, kLeast, kMost);
}

// sums[i] = parts[0][i] + parts[1][i] + ...
void sum(const int8_t* parts, size_t ranks, size_t stride, size_t elems, int32_t* sums) {
  std::fill_n(sums, elems, 0);
  for (size_t r = 0; r < ranks; ++r, parts += stride) {
    for (size_t i = 0; i < elems; ++i) sums[i] += parts[i];
  }
}

}  // namespace

void to_float(const uint16_t* half, size_t elems, float* out) {
  for (size_t i = 0; i < elems; ++i) out[i] = float_of_half(half[i]);
}

void to_half(const float* in, size_t elems, uint16_t* half) {
  for (size_t i = 0; i < elems; ++i) half[i] = half_of(in[i]);
}

void bfloat16_to_float(const uint16_t* bfloat16, size_t elems, float* out) {
  for (size_t i = 0; i < elems; ++i) out[i] = std::bit_cast<float>(uint32_t{bfloat16[i]} << 16);
}

void to_bfloat16(const float* in, size_t elems, uint16_t* bfloat16) {
  for (size_t i = 0; i < elems; ++i) bfloat16[i] = bfloat16_of(in[i]);
}

void dequantize_sum(std::span<const int8_t> parts, size_t ranks, size_t elems, std::span<const float> scale,
                    std::span<const float> offset, size_t first, float* out) {
  std::vector<float> shifts(offset.begin(), offset.end());
  for (float& shift : shifts) shift *= static_cast<float>(ranks);
  const size_t channels = std::max(scale.size(), offset.size());
  std::array<int32_t, kPiece> sums;
  for (size_t done = 0; done < elems;) {
    // One entry for all: any piece. One for each channel: up to the end of a row.
    const size_t channel = (first + done) % channels;
    const size_t piece = std::min({kPiece, elems - done, channels == 1 ? kPiece : channels - channel});
    sum(parts.data() + done, ranks, elems, piece, sums.data());
    const float* s = scale.data() + (scale.size() == 1 ? 0 : channel);
    const float* o = shifts.data() + (shifts.size() == 1 ? 0 : channel);
    const size_t s_step = scale.size() == 1 ? 0 : 1, o_step = shifts.size() == 1 ? 0 : 1;
    for (size_t i = 0; i < piece; ++i) {
      out[done + i] = (static_cast<float>(sums[i]) + o[i * o_step]) * s[i * s_step];
    }
    done += piece;
  }
}

void quantize_blocks(const float* in, size_t elems, size_t block, int8_t* q, float* scales) {
  for (size_t start = 0; start < elems; start += block) {
    const size_t count = std::min(block, elems - start);
    const float scale = scale_of(in + start, count);
    *scales++ = scale;
    if (scale != scale) {
      std::fill_n(q + start, count, int8_t{0});
      continue;
    }
    for (size_t i = start; i < start + count; ++i) {
      q[i] = static_cast<int8_t>(static_cast<int32_t>(std::clamp(rounded(in[i] / scale), -127.f, 127.f)));
    }
  }
}

void dequantize_blocks_sum(std::span<const int8_t> q, std::span<const float> scales, size_t ranks, size_t elems,
                           size_t block, float* out) {
  const size_t blocks = blocks_of(elems, block);
  for (size_t b = 0; b < blocks; ++b) {
    const size_t start = b * block, end = std::min(start + block, elems);
    for (size_t r = 0; r < ranks; ++r) {
      const int8_t* part = q.data() + r * elems;
      const float scale = scales[r * blocks + b];
      if (r == 0) {
        for (size_t i = start; i < end; ++i) out[i] = static_cast<float>(part[i]) * scale;
      } else {
        for (size_t i = start; i < end; ++i) out[i] += static_cast<float>(part[i]) * scale;
      }
    }
  }
}

}  // namespace a2a
