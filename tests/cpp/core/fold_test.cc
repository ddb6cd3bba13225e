// Folds against plain arithmetic: every dtype and operation, one element at a time.
#include "core/fold/fold.h"

#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "check.h"
#include "core/fold/small_floats.h"

namespace {

using namespace a2a;

constexpr Fold kFolds[] = {Fold::sum,  Fold::prod, Fold::min,  Fold::max,       Fold::avg,
                           Fold::band, Fold::bor,  Fold::bxor, Fold::premul_sum};
constexpr size_t kSizes[] = {0, 1, 7, 1000, 5000};

using Bytes = std::vector<std::byte>;

Bytes random_bytes(check::Random& random, size_t bytes) {
  Bytes made(bytes);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random.in(0, 255));
  return made;
}

template <class T>
T at(const Bytes& bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

// Returns one element of the result, or nothing where the fold is not defined. `x` are the elements of the ranks.
template <class T>
std::optional<T> folded_int(Fold fold, const std::vector<T>& x) {
  using U = std::make_unsigned_t<T>;
  U all = static_cast<U>(x[0]);
  T most = x[0], least = x[0];
  for (size_t k = 1; k < x.size(); ++k) {
    const U next = static_cast<U>(x[k]);
    most = std::max(most, x[k]), least = std::min(least, x[k]);
    if (fold == Fold::sum) all = static_cast<U>(static_cast<uint64_t>(all) + next);
    if (fold == Fold::prod) all = static_cast<U>(static_cast<uint64_t>(all) * next);
    if (fold == Fold::band) all &= next;
    if (fold == Fold::bor) all |= next;
    if (fold == Fold::bxor) all ^= next;
  }
  if (fold == Fold::avg || fold == Fold::premul_sum) return std::nullopt;
  return fold == Fold::min ? least : fold == Fold::max ? most : static_cast<T>(all);
}

template <class T>
std::optional<T> folded_float(Fold fold, const std::vector<T>& x) {
  volatile T all = x[0];  // so that every step rounds
  bool nan = std::isnan(x[0]);
  for (size_t k = 1; k < x.size(); ++k) {
    nan |= std::isnan(x[k]);
    if (fold == Fold::sum || fold == Fold::avg || fold == Fold::premul_sum) all = all + x[k];
    if (fold == Fold::prod) all = all * x[k];
    if (fold == Fold::min && x[k] < all) all = x[k];
    if (fold == Fold::max && x[k] > all) all = x[k];
  }
  if (fold == Fold::band || fold == Fold::bor || fold == Fold::bxor) return std::nullopt;
  if (nan) return std::numeric_limits<T>::quiet_NaN();
  return fold == Fold::avg ? all / static_cast<T>(x.size()) : all;
}

template <class T>
bool same(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return (std::isnan(a) && std::isnan(b)) || a == b;
  return a == b;
}

// Runs every fold over random bits: whole, into one of the parts, and in steps. `expect(fold, elements)` returns one
// element of the result; results are compared by `value`.
template <class Stored, class Expect, class Value>
void check_dtype(DType dtype, Expect expect, Value value, uint8_t mask = 0xff) {
  check::Random random(check::seed());
  for (const Fold fold : kFolds) {
    if (!expect(fold, std::vector<Stored>(2, Stored{}))) {
      CHECK_THROWS(Code::invalid_argument, "is not defined for", Folder(fold, dtype));
      continue;
    }
    const Folder folder(fold, dtype);
    for (const size_t elems : kSizes) {
      for (const size_t ranks : {1, 2, 3, 8}) {
        std::vector<Bytes> parts(ranks);
        std::vector<const std::byte*> pointers;
        for (Bytes& part : parts) {
          part = random_bytes(random, elems * sizeof(Stored));
          for (std::byte& byte : part) byte &= std::byte{mask};
          pointers.push_back(part.data());
        }
        std::vector<Stored> wanted;
        for (size_t i = 0; i < elems; ++i) {
          std::vector<Stored> x;
          for (const Bytes& part : parts) x.push_back(at<Stored>(part, i));
          wanted.push_back(*expect(fold, x));
        }
        const auto is_right = [&](const Bytes& out) {
          for (size_t i = 0; i < elems; ++i) {
            if (!same(value(at<Stored>(out, i)), value(wanted[i]))) return false;
          }
          return true;
        };
        Bytes acc(elems * folder.acc_bytes()), rest(acc.size()), steps(elems * sizeof(Stored)), out(steps.size());
        folder.start(pointers[0], elems, acc.data());
        for (size_t k = 1; k < ranks; ++k) {
          if (k + 1 == ranks) {  // the last one as an accumulator of its own
            folder.start(pointers[k], elems, rest.data());
            folder.merge(rest.data(), elems, acc.data());
          } else {
            folder.add(pointers[k], elems, acc.data());
          }
        }
        folder.finish(acc.data(), elems, static_cast<int>(ranks), steps.data());
        folder.fold(pointers, elems, out.data());
        Bytes& place = parts[static_cast<size_t>(random.in(0, static_cast<int>(ranks) - 1))];
        folder.fold(pointers, elems, place.data());
        const check::Note note("elements", elems), of("ranks", ranks);
        CHECK(is_right(steps) && is_right(out) && is_right(place));
      }
    }
  }
}

template <class T>
void check_int() {
  const auto value = [](T x) { return x; };
  check_dtype<T>({std::is_signed_v<T> ? uint8_t{0} : uint8_t{1}, 8 * sizeof(T), 1}, folded_int<T>, value);
}

TEST("integers wrap") {
  check_int<int8_t>(), check_int<int16_t>(), check_int<int32_t>(), check_int<int64_t>();
  check_int<uint8_t>(), check_int<uint16_t>(), check_int<uint32_t>(), check_int<uint64_t>();
}

TEST("floats, in rank order") {
  check_dtype<float>({2, 32, 1}, folded_float<float>, [](float x) { return x; });
  check_dtype<double>({2, 64, 1}, folded_float<double>, [](double x) { return x; });
}

// Folds in float32, and rounds once.
template <class Stored, class Load, class Store>
void check_small(DType dtype, Load load, Store store) {
  const auto expect = [&](Fold fold, const std::vector<Stored>& x) -> std::optional<Stored> {
    std::vector<float> wide;
    for (const Stored one : x) wide.push_back(load(one));
    const auto result = folded_float<float>(fold, wide);
    return result ? std::optional(store(*result)) : std::nullopt;
  };
  check_dtype<Stored>(dtype, expect, load);
}

TEST("small floats are folded in float32 and rounded once") {
  check_small<uint16_t>({2, 16, 1}, float_of_half, half_of);
  check_small<uint16_t>({4, 16, 1}, float_of_bfloat16, bfloat16_of);
  uint8_t code = 7;
  for (const Float8 format : {kE3m4, kE4m3, kE4m3b11fnuz, kE4m3fn, kE4m3fnuz, kE5m2, kE5m2fnuz}) {
    check_small<uint8_t>(
        {code++, 8, 1}, [format](uint8_t x) { return float_of(format, x); },
        [format](float x) { return float8_of(format, x); });
  }
}

template <class T>
void check_complex() {
  using C = std::complex<T>;
  const auto expect = [](Fold fold, const std::vector<C>& x) -> std::optional<C> {
    if (fold != Fold::sum && fold != Fold::premul_sum && fold != Fold::avg && fold != Fold::prod) return std::nullopt;
    volatile T re = x[0].real(), im = x[0].imag();
    for (size_t k = 1; k < x.size(); ++k) {
      const T a = re, b = im, c = x[k].real(), d = x[k].imag();
      if (fold == Fold::prod) {
        volatile T ac = a * c, bd = b * d, ad = a * d, bc = b * c;
        re = ac - bd, im = ad + bc;
      } else {
        re = a + c, im = b + d;
      }
    }
    const T ranks = static_cast<T>(x.size());
    return fold == Fold::avg ? C(re / ranks, im / ranks) : C(re, im);
  };
  // Real and imaginary parts in one word: NaN in either makes both sides equal to nothing else.
  for (const bool imaginary : {false, true}) {
    check_dtype<C>({5, 16 * sizeof(T), 1}, expect, [imaginary](C x) { return imaginary ? x.imag() : x.real(); });
  }
}

TEST("complex numbers") { check_complex<float>(), check_complex<double>(); }

TEST("bools") {
  const auto expect = [](Fold fold, const std::vector<uint8_t>& x) -> std::optional<uint8_t> {
    unsigned set = 0;
    for (const uint8_t one : x) set += one;
    switch (fold) {
      case Fold::sum:
      case Fold::max:
      case Fold::bor:
        return set > 0;
      case Fold::prod:
      case Fold::min:
      case Fold::band:
        return set == x.size();
      case Fold::bxor:
        return set % 2;
      default:
        return std::nullopt;
    }
  };
  check_dtype<uint8_t>({6, 8, 1}, expect, [](uint8_t x) { return x; }, 1);
}

TEST("a dtype that is no number has no fold") {
  for (const DType dtype : {DType{3, 64, 1}, DType{14, 8, 1}, DType{17, 4, 1}, DType{2, 32, 2}, DType{2, 80, 1}}) {
    for (const Fold fold : kFolds) CHECK_THROWS(Code::invalid_argument, "is not defined for", Folder(fold, dtype));
  }
}

TEST("float8 rounds to the nearest number, ties to even") {
  for (const Float8 format : {kE3m4, kE4m3, kE4m3b11fnuz, kE4m3fn, kE4m3fnuz, kE5m2, kE5m2fnuz}) {
    std::vector<std::pair<float, uint8_t>> numbers;  // not negative, in order
    for (unsigned bits = 0; bits < 0x80; ++bits) {
      const float value = float_of(format, static_cast<uint8_t>(bits));
      CHECK(same(float_of(format, float8_of(format, value)), value));
      if (std::isfinite(value)) numbers.emplace_back(value, bits);
    }
    for (size_t i = 0; i + 1 < numbers.size(); ++i) {
      const auto [below, low] = numbers[i];
      const auto [above, high] = numbers[i + 1];
      const float middle = (below + above) / 2;
      CHECK(below < above);
      CHECK_EQ(float8_of(format, middle), low % 2 == 0 ? low : high);
      CHECK_EQ(float8_of(format, std::nextafter(middle, 0.0f)), low);
      CHECK_EQ(float8_of(format, std::nextafter(middle, HUGE_VALF)), high);
    }
    CHECK(!std::isfinite(float_of(format, float8_of(format, 3e38f))));
    CHECK(std::isnan(float_of(format, float8_of(format, NAN))));
  }
}

}  // namespace
