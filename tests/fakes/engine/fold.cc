#include "engine/fold.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace fake {
namespace {

// A floating-point number of up to 16 bits. `finite` ones have no infinity, and one NaN.
template <class Bits, int kExponent, int kMantissa, bool kFinite = false>
struct Small {
  static constexpr int kBias = (1 << (kExponent - 1)) - 1, kTop = (1 << kExponent) - 1, kOne = 1 << kMantissa;
  static constexpr int kNan = kTop * kOne + (kFinite ? kOne - 1 : kOne / 2);
  static constexpr int kTooLarge = kFinite ? kNan : kTop * kOne;

  Bits bits;

  operator float() const {
    const int exponent = bits >> kMantissa & kTop, fraction = bits & (kOne - 1), magnitude = exponent * kOne + fraction;
    const float sign = bits >> (kExponent + kMantissa) ? -1.0F : 1.0F;
    if (magnitude >= kTooLarge) {
      return kFinite || magnitude > kTooLarge ? std::nanf("") : sign * std::numeric_limits<float>::infinity();
    }
    const int units = exponent == 0 ? fraction : fraction + kOne;
    return sign * std::ldexp(static_cast<float>(units), std::max(exponent, 1) - kBias - kMantissa);
  }
  static Small of(float value) {
    const int sign = std::signbit(value) ? 1 << (kExponent + kMantissa) : 0;
    const double size = std::fabs(value);
    if (std::isnan(value)) return {static_cast<Bits>(sign + kNan)};
    if (std::isinf(value)) return {static_cast<Bits>(sign + kTooLarge)};
    if (size == 0) return {static_cast<Bits>(sign)};
    int exponent;
    std::frexp(size, &exponent);
    exponent = std::clamp(exponent - 1, 1 - kBias, kBias + 1);
    const double units = std::min(std::nearbyint(std::ldexp(size, kMantissa - exponent)), 2.0 * kOne);
    const int magnitude = (exponent + kBias - 1) * kOne + static_cast<int>(units);
    return {static_cast<Bits>(sign + std::min(magnitude, kTooLarge))};
  }
};

template <class T>
constexpr bool is_small = !std::is_arithmetic_v<T>;

template <class A>
A apply(FoldOp op, A a, A b) {
  if constexpr (std::is_integral_v<A>) {  // they wrap
    using U = std::make_unsigned_t<A>;
    const auto x = static_cast<U>(a), y = static_cast<U>(b);
    if (op == FoldOp::sum || op == FoldOp::avg) return static_cast<A>(x + y);
    if (op == FoldOp::prod) return static_cast<A>(uint64_t{x} * y);
  } else {
    if (op == FoldOp::sum || op == FoldOp::avg) return a + b;
    if (op == FoldOp::prod) return a * b;
  }
  return op == FoldOp::max ? std::max(a, b) : std::min(a, b);
}

template <class T>
void fold(FoldOp op, const std::byte* parts, size_t ranks, size_t bytes, std::byte* out) {
  using A = std::conditional_t<is_small<T>, float, T>;
  const auto element = [&](size_t rank, size_t at) {
    T one;
    std::memcpy(&one, parts + rank * bytes + at, sizeof one);
    return static_cast<A>(one);
  };
  for (size_t at = 0; at < bytes; at += sizeof(T)) {
    A all = element(0, at);
    for (size_t rank = 1; rank < ranks; ++rank) all = apply(op, all, element(rank, at));
    if (op == FoldOp::avg) all = static_cast<A>(all / static_cast<A>(ranks));
    T result;
    if constexpr (is_small<T>) {
      result = T::of(all);
    } else {
      result = all;
    }
    std::memcpy(out + at, &result, sizeof result);
  }
}

using Fold = void (*)(FoldOp, const std::byte*, size_t, size_t, std::byte*);
constexpr Fold kFolds[] = {
    // by Number
    fold<int8_t>,
    fold<uint8_t>,
    fold<int16_t>,
    fold<int32_t>,
    fold<uint32_t>,
    fold<int64_t>,
    fold<uint64_t>,
    fold<Small<uint16_t, 5, 10>>,
    fold<Small<uint16_t, 8, 7>>,
    fold<float>,
    fold<double>,
    fold<Small<uint8_t, 4, 3, true>>,
    fold<Small<uint8_t, 5, 2>>,
};

}  // namespace

Folding folding(const Region& output, Number number, FoldOp op, int ranks, const Header& header) {
  const size_t bytes = output.bytes, many = static_cast<size_t>(ranks);
  const auto memory = std::make_shared<const Allocation>(-1, std::max<size_t>(1, many * bytes));
  Folding made;
  for (int peer = 0; peer < ranks; ++peer) {
    made.recvs.push_back({peer, {memory, memory->data + static_cast<size_t>(peer) * bytes, bytes}, header});
  }
  made.then = [=] { kFolds[static_cast<size_t>(number)](op, memory->data, many, bytes, output.data); };
  return made;
}

}  // namespace fake
