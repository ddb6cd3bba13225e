// An allgather of plain values. Not public.
#pragma once

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "a2a/bootstrap.h"
#include "runtime/object_bytes.h"

namespace a2a {

// Collective. Returns each rank's value, by rank. `make()` returns this rank's. If it throws an Error, every rank
// throws Error(backend). `name(rank)` is for the texts of errors.
template <class Make, class Name>
auto allgather_values(Bootstrap& bootstrap, Deadline deadline, Make&& make, Name&& name) {
  using Value = decltype(make());
  static_assert(std::is_trivially_copyable_v<Value>);
  std::string mine, failure;
  try {
    const Value own = make();
    mine.assign(object_bytes(own));
  } catch (const Error& error) {
    failure = error.what();  // the others get an empty string
  }
  const auto all = bootstrap.allgather(mine, deadline);
  if (!failure.empty()) throw Error(Code::backend, failure);
  std::vector<Value> values(all.size());
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].size() != sizeof(Value)) {
      throw Error(Code::backend, name(static_cast<Rank>(r)) + " has no room for another communicator");
    }
    std::memcpy(&values[r], all[r].data(), sizeof(Value));
  }
  return values;
}

}  // namespace a2a
