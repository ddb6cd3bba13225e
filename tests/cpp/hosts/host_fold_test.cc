#include "transport/hosts/host_fold.h"

#include "check.h"

using namespace a2a;

TEST("an average counts as often as its host has ranks") {
  float of_three = 2, of_one = 6, result = 0;
  const Run output{0, reinterpret_cast<std::byte*>(&result), sizeof(result)};
  const DType float32{2, 32, 1};
  hosts::HostFold fold({Op::reduce, Memory::host, float32, 1, 0, Fold::avg}, {&output, 1},
                       {{3, {reinterpret_cast<std::byte*>(&of_three)}}, {1, {reinterpret_cast<std::byte*>(&of_one)}}});
  CHECK(fold.step());
  CHECK_EQ(result, 3.0f);
}
