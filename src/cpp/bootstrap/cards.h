// An allgather of cards: plain values that describe each rank. Not public.
#pragma once

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "a2a/bootstrap.h"
#include "runtime/object_bytes.h"

namespace a2a {

// Collective. Returns each rank's card, by rank. `make()` returns this rank's. If it throws an Error, every rank throws
// Error(backend). `name(rank)` is for the texts of errors.
template <class Make, class Name>
auto exchange_cards(Bootstrap& bootstrap, Deadline deadline, Make&& make, Name&& name) {
  using Card = decltype(make());
  static_assert(std::is_trivially_copyable_v<Card>);
  std::string mine, failure;
  try {
    const Card card = make();
    mine.assign(object_bytes(card));
  } catch (const Error& error) {
    failure = error.what();  // the empty string tells the others
  }
  const auto all = bootstrap.allgather(mine, deadline);
  if (!failure.empty()) throw Error(Code::backend, failure);
  std::vector<Card> cards(all.size());
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].size() != sizeof(Card)) {
      throw Error(Code::backend, name(static_cast<Rank>(r)) + " has no room for another communicator");
    }
    std::memcpy(&cards[r], all[r].data(), sizeof(Card));
  }
  return cards;
}

}  // namespace a2a
