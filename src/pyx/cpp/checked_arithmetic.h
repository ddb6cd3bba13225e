// Arithmetic on 64 bits that notices an overflow.
#pragma once

#include <cstdint>

namespace a2a_py {

// Both set the result, and return whether it fits in 64 bits.
inline bool multiply(int64_t a, int64_t b, int64_t& product) { return !__builtin_mul_overflow(a, b, &product); }
inline bool add(int64_t a, int64_t b, int64_t& sum) { return !__builtin_add_overflow(a, b, &sum); }

}  // namespace a2a_py
