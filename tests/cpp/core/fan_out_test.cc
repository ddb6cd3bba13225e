// Rows that have arrived are copied to the other places of the output that want them.
#include "core/fan_out.h"

#include <array>

#include "check.h"
#include "core/schedule.h"

namespace {

using namespace a2a;

TEST("the rows of a rank are copied in every buffer, and those of others are not touched") {
  std::array<uint16_t, 4> wide{10, 11, 12, 13};
  std::array<uint8_t, 4> narrow{1, 2, 3, 4};
  const auto copies = std::make_shared<RowCopies>();
  copies->begins = {0, 2, 2, 3};  // of three ranks; rank 1 has none
  copies->copies = {{0, 1}, {0, 3}, {2, 0}};
  copies->row_bytes = {2, 1};
  void* const buffers[] = {wide.data(), narrow.data()};
  const size_t extents[] = {8, 4};
  FanOut fan_out(copies, buffers, extents);
  CHECK(!fan_out.done(0) && fan_out.done(1) && !fan_out.done(2));
  CHECK(fan_out.step(0));
  CHECK(fan_out.done(0) && !fan_out.done(2));
  CHECK_EQ(wide, (std::array<uint16_t, 4>{10, 10, 12, 10}));
  CHECK_EQ(narrow, (std::array<uint8_t, 4>{1, 1, 3, 1}));
  CHECK(fan_out.step(1) && fan_out.step(2) && fan_out.done(2));
  CHECK_EQ(wide[0], 12);
  CHECK(fan_out.buffers()[0].size() == 8 && fan_out.buffers()[1].size() == 4);
}

TEST("a step copies a limited number of bytes") {
  const size_t row = kStepBytes / 2;
  std::vector<std::byte> rows(4 * row);
  rows[0] = std::byte{7};
  const auto copies = std::make_shared<RowCopies>();
  copies->begins = {0, 3};
  copies->copies = {{0, 1}, {0, 2}, {0, 3}};
  copies->row_bytes = {row};
  void* const buffers[] = {rows.data()};
  const size_t extents[] = {rows.size()};
  FanOut fan_out(copies, buffers, extents);
  CHECK(!fan_out.step(0) && !fan_out.done(0));
  CHECK(rows[2 * row] == std::byte{7} && rows[3 * row] == std::byte{0});
  CHECK(fan_out.step(0));
  CHECK(rows[3 * row] == std::byte{7});
}

}  // namespace
