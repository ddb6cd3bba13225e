#include "a2a/types.h"

#include <iterator>

namespace a2a {
namespace {

// Names of DLPack's type codes, at the index of the code. Families take their width from `bits` ("int" + 32). A format
// has one width; this version does not know a tensor with another one.
struct CodeName {
  const char* name;
  int format_bits;  // 0 = a family
};

constexpr CodeName kCodeNames[] = {
    {"int", 0},
    {"uint", 0},
    {"float", 0},
    {nullptr, 0},  // opaque handle: its users agree on its meaning
    {"bfloat", 0},
    {"complex", 0},
    {"bool", 8},
    {"float8_e3m4", 8},
    {"float8_e4m3", 8},
    {"float8_e4m3b11fnuz", 8},
    {"float8_e4m3fn", 8},
    {"float8_e4m3fnuz", 8},
    {"float8_e5m2", 8},
    {"float8_e5m2fnuz", 8},
    {"float8_e8m0fnu", 8},
    {"float6_e2m3fn", 6},
    {"float6_e3m2fn", 6},
    {"float4_e2m1fn", 4},
};

bool has_name(DType t) {
  if (t.code >= std::size(kCodeNames) || kCodeNames[t.code].name == nullptr) return false;
  const int format_bits = kCodeNames[t.code].format_bits;
  return format_bits == 0 || format_bits == t.bits;
}

}  // namespace

std::string to_string(DType t) {
  if (!has_name(t)) {
    return "dtype(" + std::to_string(t.code) + ", " + std::to_string(t.bits) + ", " + std::to_string(t.lanes) + ")";
  }
  std::string name = kCodeNames[t.code].name;
  if (kCodeNames[t.code].format_bits == 0) name += std::to_string(t.bits);
  if (t.lanes != 1) name += "_x" + std::to_string(t.lanes);
  return name;
}

// The switches have no default, so that the compiler names a forgotten value. Values from another process, which may be
// anything, reach the last line.
const char* to_string(Memory memory) {
  switch (memory) {
    case Memory::host:
      return "host";
    case Memory::cuda:
      return "cuda";
    case Memory::npu:
      return "npu";
  }
  return "unknown memory";
}

const char* to_string(Op op) {
  switch (op) {
#define A2A_OPERATION(name, number, text, compared) \
  case Op::name:                                    \
    return text;
    A2A_OPERATIONS(A2A_OPERATION)
#undef A2A_OPERATION
  }
  return "unknown operation";
}

const char* to_string(Fold fold) {
  switch (fold) {
    case Fold::none:
      return "none";
    case Fold::sum:
      return "sum";
    case Fold::prod:
      return "prod";
    case Fold::min:
      return "min";
    case Fold::max:
      return "max";
    case Fold::avg:
      return "avg";
    case Fold::band:
      return "band";
    case Fold::bor:
      return "bor";
    case Fold::bxor:
      return "bxor";
    case Fold::premul_sum:
      return "premul_sum";
  }
  return "unknown operation";
}

Deadline Deadline::after_seconds(double seconds, Clock::time_point from) {
  constexpr double kCentury = 100 * 365.25 * 86400;  // a third of what the clock's 64 bits of nanoseconds can count
  if (!(seconds >= 0 && seconds < kCentury)) return never();  // written so that NaN means never, too
  return at(from + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
}

}  // namespace a2a
