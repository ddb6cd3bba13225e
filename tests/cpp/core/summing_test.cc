// A weighted sum of rows that arrive one after the other.
#include "core/fold/summing.h"

#include <array>

#include "check.h"

namespace {

using namespace a2a;

constexpr DType kFloat{2, 32, 1};

// Adds a row of two elements.
void add(Summing& summing, std::array<float, 2> row) {
  summing.add(reinterpret_cast<const std::byte*>(row.data()), sizeof(row));
}

WeightedSum sum_of(std::vector<Rank> sources, size_t terms, std::span<float> out) {
  WeightedSum sum;
  sum.summands = std::make_shared<Summands>(Summands{std::move(sources), terms});
  sum.out = reinterpret_cast<std::byte*>(out.data());
  sum.row_bytes = 2 * sizeof(float);
  return sum;
}

TEST("rows are weighted, summed in the order of their terms, and the biases are added") {
  std::array<float, 6> out{};
  const std::array<float, 6> weights{2, 3, 5, 100, 100, 100}, bias{1, 2, 3, 4, 5, 6};
  WeightedSum sum = sum_of({1, 0, Summing::kNobody, 1, Summing::kNobody, Summing::kNobody}, 2, out);
  sum.weights = weights.data();
  sum.biases[1] = reinterpret_cast<const std::byte*>(bias.data());
  Summing summing(sum, kFloat);
  CHECK_EQ(summing.next(), 1);
  add(summing, {1, 10});
  CHECK_EQ(summing.next(), 0);
  add(summing, {1, 10});
  CHECK_EQ(summing.next(), 1);  // the missing term is left out
  add(summing, {1, 2});
  CHECK_EQ(summing.next(), Summing::kNobody);
  CHECK_EQ(out, (std::array<float, 6>{1 + 5, 2 + 50, 3 + 100, 4 + 200, 5, 6}));
}

TEST("a row may come in parts, and a row without terms is zero") {
  std::array<float, 4> out{7, 7, 7, 7};
  Summing summing(sum_of({0, Summing::kNobody}, 1, out), kFloat);
  const std::array<float, 2> row{3, 4};
  CHECK_EQ(summing.left(), 8);
  CHECK_EQ(summing.next(), 0);
  summing.add(reinterpret_cast<const std::byte*>(row.data()), 4);
  CHECK_EQ(summing.left(), 4);
  CHECK_EQ(summing.next(), 0);
  summing.add(reinterpret_cast<const std::byte*>(row.data() + 1), 4);
  CHECK_EQ(summing.next(), Summing::kNobody);
  CHECK_EQ(out, (std::array<float, 4>{3, 4, 0, 0}));
}

TEST("dtypes that are no real floating-point numbers, and cut elements, are refused") {
  std::array<float, 2> out{};
  WeightedSum sum = sum_of({0}, 1, out);
  CHECK_THROWS(Code::invalid_argument, "not defined for int32", Summing(sum, DType{0, 32, 1}));
  CHECK_THROWS(Code::invalid_argument, "not defined for complex64", Summing(sum, DType{5, 64, 1}));
  sum.row_bytes = 6;
  CHECK_THROWS(Code::invalid_argument, "6 bytes are no whole number of float32", Summing(sum, kFloat));
}

}  // namespace
