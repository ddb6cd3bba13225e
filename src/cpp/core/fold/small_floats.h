// Floating-point formats that C++ has no type for, as bit patterns. The conversion to float is exact. The conversion
// from float rounds to nearest, ties to even, and keeps NaN a NaN.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace a2a {

namespace small_floats {
inline constexpr uint32_t kMagnitude = 0x7fffffff, kInfinity = 0x7f800000;
}

// Converts to IEEE half. It has no branches, so that compilers can vectorise it. Above 2^-14 the exponent is moved and
// the mantissa rounded as integers; below, adding 0.5 makes the floating-point unit round to a multiple of 2^-24.
inline uint16_t half_of(float value) {
  using namespace small_floats;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & kMagnitude, sign = bits >> 16 & 0x8000;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  const uint32_t nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
  uint32_t half = magnitude < 0x38800000 ? small : normal;
  half = magnitude >= 0x477ff000 ? 0x7c00 : half;  // 65520 and more
  half = magnitude > kInfinity ? nan : half;
  return static_cast<uint16_t>(sign | half);
}

inline float float_of_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, magnitude = half & 0x7fff;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  // With the exponent of 0.5 the mantissa counts steps of 2^-24.
  const auto small = std::bit_cast<uint32_t>(std::bit_cast<float>(0x3f000000 | magnitude) - 0.5f);
  uint32_t bits = magnitude < 0x400 ? small : normal;
  bits = magnitude >= 0x7c00 ? (magnitude << 13) + (224u << 23) : bits;
  return std::bit_cast<float>(sign | bits);
}

inline uint16_t bfloat16_of(float value) {
  using namespace small_floats;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & kMagnitude) > kInfinity ? nan : rounded);
}

inline float float_of_bfloat16(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

// A floating-point format of eight bits.
struct Float8 {
  int mantissa_bits;
  int bias;
  enum class Special : uint8_t {
    ieee,  // the largest exponent means infinity and NaN
    fn,    // all ones mean NaN, and there is no infinity
    fnuz,  // minus zero means NaN, and there is no infinity
  } special;
};

inline constexpr Float8 kE3m4{4, 3, Float8::Special::ieee}, kE4m3{3, 7, Float8::Special::ieee},
    kE4m3b11fnuz{3, 11, Float8::Special::fnuz}, kE4m3fn{3, 7, Float8::Special::fn},
    kE4m3fnuz{3, 8, Float8::Special::fnuz}, kE5m2{2, 15, Float8::Special::ieee},
    kE5m2fnuz{2, 16, Float8::Special::fnuz};

constexpr float float_of(Float8 format, uint8_t bits) {
  constexpr uint32_t kNaN = 0x7fc00000;
  const int m = format.mantissa_bits;
  const uint32_t magnitude = bits & 0x7f, sign = static_cast<uint32_t>(bits & 0x80) << 24;
  const uint32_t exponent = magnitude >> m, mantissa = magnitude & ((1u << m) - 1), most = 0x7fu >> m;
  if (format.special == Float8::Special::fnuz && bits == 0x80) return std::bit_cast<float>(kNaN);
  if (format.special == Float8::Special::fn && magnitude == 0x7f) return std::bit_cast<float>(sign | kNaN);
  if (format.special == Float8::Special::ieee && exponent == most) {
    return std::bit_cast<float>(sign | (mantissa == 0 ? small_floats::kInfinity : kNaN));
  }
  if (exponent == 0) {  // a multiple of the smallest number, which is a normal float
    const float step = std::bit_cast<float>(static_cast<uint32_t>(127 + 1 - format.bias - m) << 23);
    const float value = static_cast<float>(mantissa) * step;
    return sign == 0 ? value : -value;
  }
  return std::bit_cast<float>(sign | (exponent + 127 - static_cast<uint32_t>(format.bias)) << 23 |
                              mantissa << (23 - m));
}

// Values that are too large become infinity, or NaN in formats without infinity.
constexpr uint8_t float8_of(Float8 format, float value) {
  using namespace small_floats;
  const int m = format.mantissa_bits;
  const bool fnuz = format.special == Float8::Special::fnuz;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & kMagnitude;
  const auto sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  const uint8_t most = 0x7fu >> m;  // exponent
  const uint8_t nan = fnuz                                    ? 0x80
                      : format.special == Float8::Special::fn ? sign | 0x7f
                                                              : sign | most << m | 1u << (m - 1);
  if (magnitude > kInfinity) return nan;
  const uint8_t overflow = format.special == Float8::Special::ieee ? sign | most << m : nan;
  // The unit of the result's last place: of normal numbers that of the value, of smaller ones that of the smallest
  // normal number.
  const int exponent = static_cast<int>(magnitude >> 23) - 127, least = 1 - format.bias;
  if (exponent > 127 - 1) return overflow;
  const int place = (exponent < least ? least : exponent) - m;
  const float unit = std::bit_cast<float>(static_cast<uint32_t>(127 + place) << 23);
  // The value in such units, rounded to nearest even: a float of this size has no room for a fraction. At most 2^(m +
  // 1).
  constexpr float kShift = 0x1.8p23f;
  const auto units = static_cast<uint32_t>((std::bit_cast<float>(magnitude) / unit + kShift) - kShift);
  const int offset = (exponent < least ? 0 : exponent - least) << m;
  const uint32_t result = static_cast<uint32_t>(offset) + units;
  const uint32_t limit = format.special == Float8::Special::ieee ? static_cast<uint32_t>(most) << m
                         : format.special == Float8::Special::fn ? 0x7f
                                                                 : 0x80;
  if (result >= limit) return overflow;
  if (fnuz && result == 0) return 0;  // fnuz has no negative zero
  return static_cast<uint8_t>(sign | result);
}

}  // namespace a2a
