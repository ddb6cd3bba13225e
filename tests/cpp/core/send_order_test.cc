#include "core/send_order.h"

#include "check.h"

namespace {

using namespace a2a;

TEST("long messages first, similar ones in the order of the rotation") {
  CHECK(send_order(1, std::vector<uint64_t>{5, 5, 5, 5}) == std::vector<Rank>({2, 3, 0}));
  CHECK(send_order(1, std::vector<uint64_t>{4, 9, 0, 5}) == std::vector<Rank>({3, 0}));
  CHECK(send_order(0, std::vector<uint64_t>{0, 1, 100, 90}) == std::vector<Rank>({2, 3, 1}));
  CHECK(send_order(0, std::vector<uint64_t>{0, 30, 100, 90}) == std::vector<Rank>({1, 2, 3}));  // within a factor of 8
  CHECK(send_order(0, std::vector<uint64_t>{7}).empty());
  CHECK(send_order(2, std::vector<uint64_t>{UINT64_MAX, 1, 0}) == std::vector<Rank>({0, 1}));
}

}  // namespace
