// The part of an exchange that a rank sends to itself.
#include <algorithm>

#include "transport/shm/exchange.h"

namespace a2a::shm {

// A step of it, or all of it in place.
void Exchange::copy_own() {
  constexpr size_t kStep = size_t{512} << 10;
  Pair& own = operation_.own();
  if (operation_.own_in_place()) {
    copy_self(operation_.batch.sends, operation_.batch.recvs, operation_.rank);
    own.in_left = 0;
  } else {
    own.in_left -= copy(own.source, own.target, std::min(own.in_left, kStep), operation_.stores);
  }
}

}  // namespace a2a::shm
