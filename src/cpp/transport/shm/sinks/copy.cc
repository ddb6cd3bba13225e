#include <algorithm>

#include "transport/shm/sinks/sinks.h"

namespace a2a::shm::sinks {

bool copy(const Source& from) {
  const Pair& p = from.pair;
  const size_t before = p.in_left;
  const auto was = p.in;
  take(from);
  return p.in_left != before || p.in != was;
}

void copy_own(Operation& operation) {
  constexpr size_t kStep = size_t{512} << 10;
  Pair& own = operation.own();
  if (operation.own_in_place()) {
    copy_self(operation.batch.sends, operation.batch.recvs, operation.rank);
    own.in_left = 0;
  } else {
    own.in_left -= shm::copy(own.source, own.target, std::min(own.in_left, kStep), operation.stores);
  }
}

}  // namespace a2a::shm::sinks
