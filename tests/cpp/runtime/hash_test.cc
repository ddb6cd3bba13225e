#include "runtime/hash.h"

#include <cstring>
#include <limits>

#include "check.h"

namespace {

using a2a::Hash;

TEST("the hash of words is FNV-1a of 64 bits") {
  CHECK_EQ(Hash().value(), 0xcbf29ce484222325);
  CHECK_EQ(Hash().add(uint64_t{'a'}).value(), 0xaf63dc4c8601ec8c);  // the published value for "a"
}

TEST("order, length and cuts of texts change the hash") {
  CHECK(Hash().add(1).add(2).value() != Hash().add(2).add(1).value());
  CHECK(Hash().add("ab").add("c").value() != Hash().add("a").add("bc").value());
  CHECK(Hash().add("").value() != Hash().value());
}

}  // namespace
