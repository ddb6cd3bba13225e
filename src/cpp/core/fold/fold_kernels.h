// The loops of a fold, compiled once for each instruction set. Everything here has internal linkage, so that no program
// gets a function with instructions that its processor lacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/fold/small_floats.h"

namespace a2a {

// All pointers are of any alignment that the elements have; `out` may be one of the inputs.
struct FoldKernels {
  size_t acc_bytes;
  void (*start)(const void* part, size_t elems, void* acc);
  void (*add)(const void* part, size_t elems, void* acc);
  void (*merge)(const void* more, size_t elems, void* acc);
  void (*finish)(const void* acc, size_t elems, int ranks, void* out);
  void (*two)(const void* a, const void* b, size_t elems, void* out);  // the fold of two parts
  // acc = weight * part, and acc = acc op weight * part; nullptr where accumulators are no real floating-point numbers.
  void (*start_scaled)(const void* part, size_t elems, float weight, void* acc);
  void (*add_scaled)(const void* part, size_t elems, float weight, void* acc);
};

// Tells the compiler that elements do not depend on each other, also where the output is one of the inputs.
#if defined(__clang__)
#define A2A_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define A2A_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace {
namespace fold_kernels {

// ---- elements: how they are stored, and in which type they are folded ----------------------------------------------

template <class T>
struct Plain {
  using Stored = T;
  using Acc = T;
  static Acc load(Stored x) { return x; }
  static Stored store(Acc x) { return x; }
};

template <class T>
struct Complex {
  T re, im;
};

struct Bool {
  using Stored = uint8_t;
  using Acc = uint8_t;
  static Acc load(Stored x) { return x != 0; }
  static Stored store(Acc x) { return x; }
};
struct Half {
  using Stored = uint16_t;
  using Acc = float;
  static Acc load(Stored x) { return float_of_half(x); }
  static Stored store(Acc x) { return half_of(x); }
};
struct Bfloat16 {
  using Stored = uint16_t;
  using Acc = float;
  static Acc load(Stored x) { return float_of_bfloat16(x); }
  static Stored store(Acc x) { return bfloat16_of(x); }
};
template <const Float8& kFormat>
struct Eight {
  using Stored = uint8_t;
  using Acc = float;
  static Acc load(Stored x) { return float_of(kFormat, x); }
  static Stored store(Acc x) { return float8_of(kFormat, x); }
};
struct Complex32 {
  using Stored = Complex<uint16_t>;
  using Acc = Complex<float>;
  static Acc load(Stored x) { return {float_of_half(x.re), float_of_half(x.im)}; }
  static Stored store(Acc x) { return {half_of(x.re), half_of(x.im)}; }
};

// ---- operations ----------------------------------------------------------------------------------------------------

// The type in which integers are added and multiplied: unsigned, which wraps, and no smaller than int, to which C++
// promotes.
template <class T>
using Wide = std::conditional_t<(sizeof(T) < sizeof(unsigned)), unsigned, std::make_unsigned_t<T>>;

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<Wide<T>>(a) + static_cast<Wide<T>>(b));
    else
      return a + b;
  }
  template <class T>
  static Complex<T> apply(Complex<T> a, Complex<T> b) {
    return {a.re + b.re, a.im + b.im};
  }
};
struct Prod {
  template <class T>
  static T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>)
      return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
    else
      return a * b;
  }
  template <class T>
  static Complex<T> apply(Complex<T> a, Complex<T> b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return a < b || a != a ? a : b;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return a > b || a != a ? a : b;
  }
};
struct And {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

template <class T>
T divided(T sum, int ranks) {
  return sum / static_cast<T>(ranks);
}
template <class T>
Complex<T> divided(Complex<T> sum, int ranks) {
  return {sum.re / static_cast<T>(ranks), sum.im / static_cast<T>(ranks)};
}

// ---- loops ---------------------------------------------------------------------------------------------------------

template <class Element, class Op, bool kAverage>
struct Loops {
  using Stored = typename Element::Stored;
  using Acc = typename Element::Acc;

  static Stored finished(Acc acc, int ranks) {
    if constexpr (kAverage) acc = divided(acc, ranks);
    return Element::store(acc);
  }
  static void start(const void* part, size_t elems, void* acc) {
    const auto* x = static_cast<const Stored*>(part);
    auto* to = static_cast<Acc*>(acc);
    A2A_INDEPENDENT
    for (size_t i = 0; i < elems; ++i) to[i] = Element::load(x[i]);
  }
  static void add(const void* part, size_t elems, void* acc) {
    const auto* x = static_cast<const Stored*>(part);
    auto* to = static_cast<Acc*>(acc);
    A2A_INDEPENDENT
    for (size_t i = 0; i < elems; ++i) to[i] = Op::apply(to[i], Element::load(x[i]));
  }
  static void merge(const void* more, size_t elems, void* acc) {
    const auto* x = static_cast<const Acc*>(more);
    auto* to = static_cast<Acc*>(acc);
    A2A_INDEPENDENT
    for (size_t i = 0; i < elems; ++i) to[i] = Op::apply(to[i], x[i]);
  }
  static void finish(const void* acc, size_t elems, int ranks, void* out) {
    const auto* x = static_cast<const Acc*>(acc);
    auto* to = static_cast<Stored*>(out);
    A2A_INDEPENDENT
    for (size_t i = 0; i < elems; ++i) to[i] = finished(x[i], ranks);
  }
  static void two(const void* a, const void* b, size_t elems, void* out) {
    const auto* x = static_cast<const Stored*>(a);
    const auto* y = static_cast<const Stored*>(b);
    auto* to = static_cast<Stored*>(out);
    A2A_INDEPENDENT
    for (size_t i = 0; i < elems; ++i) to[i] = finished(Op::apply(Element::load(x[i]), Element::load(y[i])), 2);
  }

  static void start_scaled(const void* part, size_t elems, float weight, void* acc) {
    const auto* x = static_cast<const Stored*>(part);
    auto* to = static_cast<Acc*>(acc);
    A2A_INDEPENDENT
    for (size_t i = 0; i < elems; ++i) to[i] = static_cast<Acc>(weight) * Element::load(x[i]);
  }
  static void add_scaled(const void* part, size_t elems, float weight, void* acc) {
    const auto* x = static_cast<const Stored*>(part);
    auto* to = static_cast<Acc*>(acc);
    A2A_INDEPENDENT
    for (size_t i = 0; i < elems; ++i) to[i] = Op::apply(to[i], static_cast<Acc>(weight) * Element::load(x[i]));
  }

  static constexpr FoldKernels kernels() {
    FoldKernels all{sizeof(Acc), start, add, merge, finish, two, nullptr, nullptr};
    if constexpr (std::is_floating_point_v<Acc> && std::is_same_v<Op, Sum>) {
      all.start_scaled = start_scaled;
      all.add_scaled = add_scaled;
    }
    return all;
  }
  static constexpr FoldKernels kKernels = kernels();
};

template <class Element, class Op, bool kAverage = false>
const FoldKernels* loops() {
  return &Loops<Element, Op, kAverage>::kKernels;
}

template <class Element>
const FoldKernels* of_bits(Fold fold) {
  switch (fold) {
    case Fold::band:
      return loops<Element, And>();
    case Fold::bor:
      return loops<Element, Or>();
    case Fold::bxor:
      return loops<Element, Xor>();
    default:
      return nullptr;
  }
}

template <class Element>
const FoldKernels* of_complex(Fold fold) {
  switch (fold) {
    case Fold::sum:
    case Fold::premul_sum:
      return loops<Element, Sum>();
    case Fold::prod:
      return loops<Element, Prod>();
    case Fold::avg:
      return loops<Element, Sum, true>();
    default:
      return nullptr;
  }
}

template <class Element>
const FoldKernels* of_float(Fold fold) {
  if (fold == Fold::min) return loops<Element, Min>();
  if (fold == Fold::max) return loops<Element, Max>();
  return of_complex<Element>(fold);
}

template <class T>
const FoldKernels* of_int(Fold fold) {
  switch (fold) {
    case Fold::sum:
      return loops<Plain<T>, Sum>();
    case Fold::prod:
      return loops<Plain<T>, Prod>();
    case Fold::min:
      return loops<Plain<T>, Min>();
    case Fold::max:
      return loops<Plain<T>, Max>();
    default:
      return of_bits<Plain<T>>(fold);
  }
}

inline const FoldKernels* of_bool(Fold fold) {
  switch (fold) {
    case Fold::sum:
    case Fold::max:
      return of_bits<Bool>(Fold::bor);
    case Fold::prod:
    case Fold::min:
      return of_bits<Bool>(Fold::band);
    default:
      return of_bits<Bool>(fold);
  }
}

// Finds the loops for a dtype by DLPack's codes. nullptr: there is no such fold.
inline const FoldKernels* find(Fold fold, DType dtype) {
  enum : uint8_t { kInt, kUint, kFloat, kBfloat = 4, kComplex, kBool };
  switch (dtype.code << 8 | dtype.bits) {
    case kInt << 8 | 8:
      return of_int<int8_t>(fold);
    case kInt << 8 | 16:
      return of_int<int16_t>(fold);
    case kInt << 8 | 32:
      return of_int<int32_t>(fold);
    case kInt << 8 | 64:
      return of_int<int64_t>(fold);
    case kUint << 8 | 8:
      return of_int<uint8_t>(fold);
    case kUint << 8 | 16:
      return of_int<uint16_t>(fold);
    case kUint << 8 | 32:
      return of_int<uint32_t>(fold);
    case kUint << 8 | 64:
      return of_int<uint64_t>(fold);
    case kFloat << 8 | 16:
      return of_float<Half>(fold);
    case kFloat << 8 | 32:
      return of_float<Plain<float>>(fold);
    case kFloat << 8 | 64:
      return of_float<Plain<double>>(fold);
    case kBfloat << 8 | 16:
      return of_float<Bfloat16>(fold);
    case kComplex << 8 | 32:
      return of_complex<Complex32>(fold);
    case kComplex << 8 | 64:
      return of_complex<Plain<Complex<float>>>(fold);
    case kComplex << 8 | 128:
      return of_complex<Plain<Complex<double>>>(fold);
    case kBool << 8 | 8:
      return of_bool(fold);
    default:
      return nullptr;
  }
}

}  // namespace fold_kernels
}  // namespace
}  // namespace a2a
