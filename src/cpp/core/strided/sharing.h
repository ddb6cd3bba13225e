// Whether blocks of memory with gaps have bytes in common. Not public.
#pragma once

#include <cstddef>

#include "core/strided/strides.h"

namespace a2a {

// The memory from `begin` to `end`, or with strides the elements of a block in it.
struct Stretch {
  const std::byte *begin, *end;
  const Strides* strides = nullptr;
};

// Whether two blocks that overlap from begin to end have a byte in common. Columns of a matrix, for example, have none.
// Takes no more time than a copy of both; says true where that would be too long.
bool share_memory(const Stretch& a, const Stretch& b);

}  // namespace a2a
