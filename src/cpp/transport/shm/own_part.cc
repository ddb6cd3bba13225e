// The part of an exchange that a rank sends to itself.
#include <algorithm>

#include "transport/shm/exchange.h"

namespace a2a::shm {

// Whether there is nothing to do for any peer, now or soon: those whose bytes are missing put them here.
bool Exchange::only_expects() const {
  const auto expects = [this](Rank peer) { return pair(peer).in == Pair::In::expecting; };
  return posted_ && unsettled_.empty() && std::ranges::all_of(awaited_, expects);
}

// A step of it, or all of it in place. Stores past the caches are waited for at the end of each step; other steps are
// short, to leave more that goes beside what a peer has.
void Exchange::copy_own() {
  const size_t short_step = (operation_.stores == Stores::streaming ? size_t{512} : size_t{16}) << 10;
  const size_t step = only_expects() ? kCopyStep : short_step;
  Pair& own = operation_.own();
  if (operation_.own_in_place()) {
    copy_self(operation_.batch.sends, operation_.batch.recvs, operation_.rank);
    own.in_left = 0;
  } else {
    own.in_left -= copy(own.source, own.target, std::min(own.in_left, step), operation_.stores);
  }
}

// Whether the next peer's bytes are there and come before this rank's own part. Those it can copy itself do: its own go
// on beside them. Of those that the kernel copies, where memory sets the pace, they do on every other rank: two kinds
// of copies at once, stores past the caches and the kernel's, take less time than the same one twice.
bool Exchange::peers_come_first(Membership& m) const {
  if (awaited_.empty()) return false;
  const Line& line = m.peer(awaited_.front()).block.line(number(), m.rank());
  Head head;
  if (!observe(line, number(), &head)) return false;
  const auto kind = static_cast<Kind>(head.kind);
  if (kind == Kind::cma) return operation_.stores == Stores::streaming && operation_.rank % 2 == 1;
  return kind == Kind::shared || kind == Kind::pointer;
}

}  // namespace a2a::shm
