#include "transport/hosts/received_sum.h"

#include <array>
#include <cstring>

#include "check.h"

namespace {

using namespace a2a;
using hosts::ReceivedSum;

constexpr DType kFloat{2, 32, 1};
constexpr Rank kNobody = -1;

// A batch of one receive for each row that comes, and a sum of rows of `width` floats.
Batch batch_of(std::vector<Rank> sources, size_t terms, size_t width, std::span<float> out) {
  Batch batch;
  batch.signature.dtype = kFloat;
  batch.sum.row_bytes = width * sizeof(float);
  batch.sum.out = reinterpret_cast<std::byte*>(out.data());
  for (Rank peer = 0; peer < 4; ++peer) {
    for (size_t i = 0; i < static_cast<size_t>(std::ranges::count(sources, peer)); ++i) {
      batch.recvs.push_back({peer, batch.sum.out, batch.sum.row_bytes});
    }
  }
  batch.sum.summands = std::make_shared<Summands>(Summands{std::move(sources), terms});
  return batch;
}

void come(const Run& run, float value) {
  std::vector<float> row(run.bytes / sizeof(float), value);
  std::memcpy(run.data, row.data(), run.bytes);
}

TEST("rows arrive beside the output, and each rank's are summed in the order of its terms") {
  std::array<float, 3> out{-1, -1, -1};
  Batch batch = batch_of({3, 1, 1, kNobody, 3, 1}, 2, 1, out);
  ReceivedSum sum(batch, 4);
  const std::array<float, 5> values{1, 20, 300, 4000, 50000};  // of rank 1, of rank 1, of rank 1, of rank 3, of rank 3
  for (size_t i = 0; i < values.size(); ++i) come(batch.recvs[i], values[i]);
  CHECK_EQ(out, (std::array<float, 3>{-1, -1, -1}));  // nothing of it was overwritten meanwhile
  CHECK(sum.step());
  CHECK_EQ(out, (std::array<float, 3>{4000 + 1, 20, 50000 + 300}));
}

TEST("many bytes are summed in several steps, so that other operations go on between them") {
  constexpr size_t kWidth = kStepBytes / sizeof(float);
  std::vector<float> out(2 * kWidth);
  Batch batch = batch_of({0, 2}, 1, kWidth, out);
  ReceivedSum sum(batch, 4);
  come(batch.recvs[0], 1), come(batch.recvs[1], 2);
  CHECK(!sum.step());
  CHECK(out[0] == 1 && out[kWidth] == 0);
  while (!sum.step()) {
  }
  CHECK(out[kWidth] == 2 && out.back() == 2);
}

}  // namespace
