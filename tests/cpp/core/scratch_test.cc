#include "core/scratch.h"

#include "check.h"

using namespace a2a;

TEST("memory serves again when the operation is over") {
  Scratch scratch;
  auto first = scratch.take(100);
  const std::byte* const where = first.get();
  const auto second = scratch.take(50);
  CHECK(second.get() != where);
  first.reset();
  auto third = scratch.take(200);
  const std::byte* const there = third.get();
  third.reset();
  CHECK(scratch.take(200).get() == there);
}
