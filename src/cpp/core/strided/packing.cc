// Copies bytes between memory with gaps and packed memory.
#include <cstring>
#include <type_traits>

#include "core/strided/strides.h"
#include "core/strided/transpose.h"

namespace a2a {
namespace {

using transposing::From;
using transposing::To;
using transposing::transpose;

// Copies from memory with gaps to packed memory.
struct Gathering {
  using Gaps = const std::byte*;
  using Packed = std::byte*;

  static void copy(Gaps gaps, Packed packed, size_t bytes) { std::memcpy(packed, gaps, bytes); }
  // Transposes `rows` rows of `count` entries. Entry i of a row lies at i * stride, and the rows are adjacent in
  // memory, element by element.
  template <size_t kBytes>
  static void turn(Gaps gaps, ptrdiff_t stride, size_t count, Packed packed, size_t rows) {
    transpose<kBytes>(From{gaps, stride}, To{packed, static_cast<ptrdiff_t>(count * kBytes)}, count, rows);
  }
};

// The inverse.
struct Scattering {
  using Gaps = std::byte*;
  using Packed = const std::byte*;

  static void copy(Gaps gaps, Packed packed, size_t bytes) { std::memcpy(gaps, packed, bytes); }
  template <size_t kBytes>
  static void turn(Gaps gaps, ptrdiff_t stride, size_t count, Packed packed, size_t rows) {
    transpose<kBytes>(From{packed, static_cast<ptrdiff_t>(count * kBytes)}, To{gaps, stride}, rows, count);
  }
};

template <class Direction>
class Packing {
 public:
  using Gaps = typename Direction::Gaps;
  using Packed = typename Direction::Packed;

  Packing(Gaps block, const Strides& strides, size_t at, Packed packed)
      : block_(block), strides_(strides), at_(at), packed_(packed) {}

  void run(size_t bytes) {
    if (bytes == 0) return;  // of memory that may be null
    const size_t piece = strides_.piece();
    if (strides_.contiguous() || strides_.together(at_) >= bytes) {
      part(bytes);
      return;
    }
    if (at_ % piece != 0) bytes -= part(strides_.together(at_));
    switch (piece) {
      case 1:
        bytes -= pieces<1>(bytes);
        break;
      case 2:
        bytes -= pieces<2>(bytes);
        break;
      case 4:
        bytes -= pieces<4>(bytes);
        break;
      case 8:
        bytes -= pieces<8>(bytes);
        break;
      case 16:
        bytes -= pieces<16>(bytes);
        break;
      default:
        bytes -= pieces<0>(bytes);
    }
    if (bytes > 0) part(bytes);
  }

 private:
  // Copies a part of one piece, from the current position.
  size_t part(size_t bytes) {
    Direction::copy(block_ + strides_.offset(at_), packed_, bytes);
    pass(bytes);
    return bytes;
  }

  void pass(size_t bytes) {
    at_ += bytes;
    packed_ += bytes;
  }

  // Copies whole pieces of kBytes each; 0: of any size. Returns the bytes that were copied.
  template <size_t kBytes>
  size_t pieces(size_t bytes) {
    const size_t piece = kBytes == 0 ? strides_.piece() : kBytes;
    const Strides::Dim& inner = strides_.dim(strides_.dims() - 1);
    size_t left = bytes / piece;
    while (left > 0) {
      const size_t from = at_ / piece % inner.count;
      const size_t rows = from == 0 ? rows_together(left / inner.count) : 0;
      if constexpr (kBytes != 0 && kBytes < 16) {
        if (rows > 1) {
          Direction::template turn<kBytes>(block_ + strides_.offset(at_), inner.stride, inner.count, packed_, rows);
          pass(rows * inner.count * piece);
          left -= rows * inner.count;
          continue;
        }
      }
      const size_t count = std::min(left, inner.count - from);
      row<kBytes>(block_ + strides_.offset(at_), inner.stride, count, piece);
      pass(count * piece);
      left -= count;
    }
    return bytes / piece * piece;
  }

  // Returns how many rows of the innermost dimension from here on are adjacent, element by element.
  size_t rows_together(size_t limit) const {
    if (strides_.dims() < 2 || limit < 2) return 0;
    const Strides::Dim& outer = strides_.dim(strides_.dims() - 2);
    if (outer.stride != static_cast<ptrdiff_t>(strides_.piece())) return 0;
    return std::min(limit, outer.count - at_ / outer.bytes % outer.count);
  }

  template <size_t kBytes>
  void row(Gaps gaps, ptrdiff_t stride, size_t count, size_t piece) {
    const size_t bytes = kBytes == 0 ? piece : kBytes;
    Packed packed = packed_;
    for (size_t i = 0; i < count; ++i, gaps += stride, packed += bytes) {
      if constexpr (kBytes == 0) {
        Direction::copy(gaps, packed, bytes);
      } else {
        Direction::copy(gaps, packed, kBytes);
      }
    }
  }

  const Gaps block_;
  const Strides& strides_;
  size_t at_;  // of the block
  Packed packed_;
};

}  // namespace

void gather(const std::byte* block, const Strides& strides, size_t at, size_t bytes, std::byte* to) {
  Packing<Gathering>(block, strides, at, to).run(bytes);
}

void scatter(std::byte* block, const Strides& strides, size_t at, size_t bytes, const std::byte* from) {
  Packing<Scattering>(block, strides, at, from).run(bytes);
}

}  // namespace a2a
