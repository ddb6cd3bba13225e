// Transposes matrices of small elements in tiles that fit in the cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace a2a::transposing {

// A matrix in memory; `row` is in bytes, from one row to the next.
struct From {
  const std::byte* data;
  ptrdiff_t row;
  const std::byte* at(size_t i, size_t offset) const { return data + static_cast<ptrdiff_t>(i) * row + offset; }
};
struct To {
  std::byte* data;
  ptrdiff_t row;
  std::byte* at(size_t i, size_t offset) const { return data + static_cast<ptrdiff_t>(i) * row + offset; }
};

// to[i][j] = from[j][i], for elements of kBytes bytes.
template <size_t kBytes>
void scalar_tile(From from, To to, size_t rows, size_t cols) {
  for (size_t i = 0; i < cols; ++i) {
    for (size_t j = 0; j < rows; ++j) std::memcpy(to.at(i, j * kBytes), from.at(j, i * kBytes), kBytes);
  }
}

// The number of rows and columns of a full tile.
template <size_t kBytes>
constexpr size_t kSide = 16 / kBytes > 8 ? 8 : 16 / kBytes;

template <size_t kBytes>
void full_tile(From from, To to) {
  scalar_tile<kBytes>(from, to, kSide<kBytes>, kSide<kBytes>);
}

#if defined(__SSE2__)
inline __m128i load(const std::byte* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
inline void store(std::byte* to, __m128i value) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value); }

template <>
inline void full_tile<8>(From from, To to) {
  const __m128i a = load(from.at(0, 0)), b = load(from.at(1, 0));
  store(to.at(0, 0), _mm_unpacklo_epi64(a, b));
  store(to.at(1, 0), _mm_unpackhi_epi64(a, b));
}

template <>
inline void full_tile<4>(From from, To to) {
  const __m128i a = load(from.at(0, 0)), b = load(from.at(1, 0)), c = load(from.at(2, 0)), d = load(from.at(3, 0));
  const __m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
  const __m128i ab2 = _mm_unpackhi_epi32(a, b), cd2 = _mm_unpackhi_epi32(c, d);
  store(to.at(0, 0), _mm_unpacklo_epi64(ab, cd));
  store(to.at(1, 0), _mm_unpackhi_epi64(ab, cd));
  store(to.at(2, 0), _mm_unpacklo_epi64(ab2, cd2));
  store(to.at(3, 0), _mm_unpackhi_epi64(ab2, cd2));
}

template <>
inline void full_tile<2>(From from, To to) {
  __m128i row[8], pair[8], four[8];
  for (size_t i = 0; i < 8; ++i) row[i] = load(from.at(i, 0));
  for (size_t i = 0; i < 4; ++i) {
    pair[i] = _mm_unpacklo_epi16(row[2 * i], row[2 * i + 1]);
    pair[i + 4] = _mm_unpackhi_epi16(row[2 * i], row[2 * i + 1]);
  }
  for (size_t i = 0; i < 8; i += 2) {
    four[i] = _mm_unpacklo_epi32(pair[i], pair[i + 1]);
    four[i + 1] = _mm_unpackhi_epi32(pair[i], pair[i + 1]);
  }
  for (size_t i = 0; i < 2; ++i) {
    store(to.at(4 * i, 0), _mm_unpacklo_epi64(four[4 * i], four[4 * i + 2]));
    store(to.at(4 * i + 1, 0), _mm_unpackhi_epi64(four[4 * i], four[4 * i + 2]));
    store(to.at(4 * i + 2, 0), _mm_unpacklo_epi64(four[4 * i + 1], four[4 * i + 3]));
    store(to.at(4 * i + 3, 0), _mm_unpackhi_epi64(four[4 * i + 1], four[4 * i + 3]));
  }
}
#endif

// to[i][j] = from[j][i] of a matrix of `rows` and `cols`.
template <size_t kBytes>
void transpose(From from, To to, size_t rows, size_t cols) {
  constexpr size_t kTile = kSide<kBytes>;
  constexpr size_t kBlock = 64;  // rows whose tiles are done before those of the next rows
  for (size_t row = 0; row < rows; row += kBlock) {
    const size_t row_end = std::min(rows, row + kBlock);
    for (size_t i = 0; i < cols; i += kTile) {
      const size_t wide = std::min(kTile, cols - i);
      for (size_t j = row; j < row_end; j += kTile) {
        const size_t high = std::min(kTile, row_end - j);
        const From source{from.at(j, i * kBytes), from.row};
        const To target{to.at(i, j * kBytes), to.row};
        if (wide == kTile && high == kTile) {
          full_tile<kBytes>(source, target);
        } else {
          scalar_tile<kBytes>(source, target, high, wide);
        }
      }
    }
  }
}

}  // namespace a2a::transposing
