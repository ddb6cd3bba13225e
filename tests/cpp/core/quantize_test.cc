// Quantised arithmetic: conversions bit by bit, sums and blocks against plain loops.
#include "a2a/quantize.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "check.h"

namespace {

// The value of a half by its definition.
double value_of(uint16_t half) {
  const int exponent = half >> 10 & 31, mantissa = half & 0x3ff;
  const double sign = half & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

uint16_t half_of(float value) {
  uint16_t half;
  a2a::to_half(&value, 1, &half);
  return half;
}

std::vector<int8_t> random_int8(check::Random& random, size_t n) {
  std::vector<int8_t> values(n);
  for (auto& value : values) value = static_cast<int8_t>(random.in(-128, 127));
  return values;
}

}  // namespace

TEST("every float16 converts to float32 and back") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    float value;
    a2a::to_float(&half, 1, &value);
    const double exact = value_of(half);
    if (exact != exact) {
      CHECK(value != value && (half_of(value) & 0x7fff) > 0x7c00);
    } else {
      CHECK(value == exact && std::signbit(value) == ((half & 0x8000) != 0));
      CHECK_EQ(half_of(value), half);
    }
  }
}

TEST("floats round to the nearest half, ties to even") {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const auto low = static_cast<uint16_t>(bits), even = static_cast<uint16_t>(bits + (bits & 1));
    const double above = bits == 0x7bff ? 65536 : value_of(static_cast<uint16_t>(bits + 1));
    const auto middle = static_cast<float>((value_of(low) + above) / 2);  // exact
    CHECK_EQ(half_of(middle), even);
    CHECK_EQ(half_of(std::nextafter(middle, 0.f)), low);
    CHECK_EQ(half_of(std::nextafter(middle, HUGE_VALF)), low + 1);
    CHECK_EQ(half_of(-middle), even | 0x8000);
  }
  CHECK_EQ(half_of(HUGE_VALF), 0x7c00);
  CHECK_EQ(half_of(65519.f), 0x7bff);
  CHECK_EQ(half_of(65520.f), 0x7c00);
}

TEST("bfloat16") {
  const auto round_trip = [](uint32_t bits) {
    const auto value = std::bit_cast<float>(bits);
    uint16_t out;
    a2a::to_bfloat16(&value, 1, &out);
    float back;
    a2a::bfloat16_to_float(&out, 1, &back);
    CHECK(std::bit_cast<uint32_t>(back) == uint32_t{out} << 16);
    return out;
  };
  CHECK_EQ(round_trip(0x3f808000), 0x3f80);  // a tie
  CHECK_EQ(round_trip(0x3f818000), 0x3f82);
  CHECK_EQ(round_trip(0x3f808001), 0x3f81);
  CHECK_EQ(round_trip(0x7f7fffff), 0x7f80);
  CHECK_EQ(round_trip(0x7f800001), 0x7fc0);
}

TEST("sums are exact, per tensor and per channel, from any element on") {
  check::Random random(check::seed());
  for (int round = 0; round < 60; ++round) {
    const auto ranks = random.in(size_t{1}, size_t{9}), elems = random.in(size_t{1}, size_t{5000});
    const auto channels = random.in(size_t{1}, size_t{70}), first = random.in(size_t{0}, size_t{1000});
    const auto parts = random_int8(random, ranks * elems);
    std::vector<float> scale(random.chance(0.5) ? channels : 1), offset(random.chance(0.5) ? channels : 1);
    for (float& s : scale) s = static_cast<float>(random.in(1, 1000)) / 512;
    for (float& o : offset) o = static_cast<float>(random.in(-256, 256)) / 2;
    std::vector<float> out(elems), wanted(elems);
    for (size_t i = 0; i < elems; ++i) {
      int64_t sum = 0;
      for (size_t r = 0; r < ranks; ++r) sum += parts[r * elems + i];
      const float o = offset[(first + i) % offset.size()] * static_cast<float>(ranks);
      wanted[i] = (static_cast<float>(sum) + o) * scale[(first + i) % scale.size()];
    }
    a2a::dequantize_sum(parts, ranks, elems, scale, offset, first, out.data());
    CHECK(out == wanted);
  }
}

// 2^24 ranks are the most whose sum is sure to fit in 32 bits, 2^17 the most whose sum is sure to be a float.
TEST("sums of very many ranks are exact") {
  const auto sum_of = [](const std::vector<int8_t>& parts) {
    const float scale = 1, offset = 0;
    float out = 0;
    a2a::dequantize_sum(parts, parts.size(), 1, {&scale, 1}, {&offset, 1}, 0, &out);
    return out;
  };
  for (const size_t ranks : {size_t{65536}, size_t{1} << 17}) {
    std::vector<int8_t> parts(ranks, -128);
    CHECK_EQ(sum_of(parts), -128.f * static_cast<float>(ranks));
    parts.back() = -127;
    CHECK_EQ(sum_of(parts), -128.f * static_cast<float>(ranks) + 1);
    CHECK_EQ(sum_of(std::vector<int8_t>(ranks, 127)), 127.f * static_cast<float>(ranks));
  }
  CHECK_EQ(sum_of(std::vector<int8_t>(size_t{1} << 24, -128)), -0x1p31f);
  CHECK_EQ(sum_of(std::vector<int8_t>(size_t{1} << 24, 127)), 127 * 0x1p24f);
}

TEST("blocks: error at most half a scale, sums in the order of ranks") {
  check::Random random(check::seed());
  for (int round = 0; round < 60; ++round) {
    const auto ranks = random.in(size_t{1}, size_t{5}), elems = random.in(size_t{1}, size_t{1000});
    const auto block = random.in(size_t{1}, size_t{300}), blocks = a2a::blocks_of(elems, block);
    std::vector<float> x(ranks * elems), scales(ranks * blocks), out(elems), wanted(elems);
    for (float& value : x) {
      value = std::ldexp(static_cast<float>(random.in(-1000000, 1000000)), random.in(-60, 40));
    }
    std::vector<int8_t> q(ranks * elems);
    for (size_t r = 0; r < ranks; ++r) {
      a2a::quantize_blocks(&x[r * elems], elems, block, &q[r * elems], &scales[r * blocks]);
      for (size_t i = 0; i < elems; ++i) {
        const double s = scales[r * blocks + i / block], error = q[r * elems + i] * s - double{x[r * elems + i]};
        // The quotient is rounded to float before it is rounded to an integer.
        CHECK(std::abs(error) <= s / 2 * (1 + 1e-4) && q[r * elems + i] >= -127);
        wanted[i] = r == 0 ? static_cast<float>(q[i]) * scales[i / block]
                           : wanted[i] + static_cast<float>(q[r * elems + i]) * scales[r * blocks + i / block];
      }
    }
    a2a::dequantize_blocks_sum(q, scales, ranks, elems, block, out.data());
    CHECK(out == wanted);
  }
}

TEST("blocks of zeros, of the smallest numbers, and of what is no number") {
  const float tiny = std::numeric_limits<float>::denorm_min(), most = std::numeric_limits<float>::max();
  const float in[] = {0, -0.f, tiny, -tiny, most, -most, HUGE_VALF, 1, NAN, 1};
  int8_t q[10];
  float scales[5], out[10];
  a2a::quantize_blocks(in, 10, 2, q, scales);
  CHECK_EQ(scales[0], 1.f);
  CHECK(q[0] == 0 && q[1] == 0 && q[2] == 0 && q[3] == 0);
  CHECK(q[4] == 127 && q[5] == -127);
  a2a::dequantize_blocks_sum(q, scales, 1, 10, 2, out);
  CHECK(std::isfinite(out[4]) && out[2] == 0);
  for (int i = 6; i < 10; ++i) CHECK(std::isnan(out[i]));
}
