#include "wick/nn/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>

#include "io/files.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/matmul.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

Tensor random(const Shape& shape, uint64_t seed) {
  Rng rng(seed);
  return random_normal(shape, rng);
}

double size_of_all(const Tensor& x) {
  double sum = 0;
  for (const float v : x.to_vector()) sum += double(v) * double(v);
  return std::sqrt(sum);
}

Tensor product(const LowRank& part) { return matmul(part.up, part.down); }

Tensor transposed(const Tensor& x) { return contiguous(permute(x, {1, 0})); }

// Orthonormal rows, made by a Householder reflection of size n, so that no code under test makes them.
Tensor orthonormal(int64_t rows, int64_t n, uint64_t seed) {
  const std::vector<float> v = random({n}, seed).to_vector();
  double length = 0;
  for (const float x : v) length += double(x) * double(x);
  std::vector<float> all;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < n; ++j)
      all.push_back(float((i == j) - 2 * double(v[size_t(i)]) * double(v[size_t(j)]) / length));
  return Tensor::of(all, {rows, n});
}

// A matrix with these singular values, and its part for the first `rank` of them.
struct Known {
  Tensor whole, part;
};

Known with_values(int64_t out, int64_t in, const std::vector<float>& values, int64_t rank, uint64_t seed) {
  const int64_t count = int64_t(values.size());
  const Tensor up = transposed(orthonormal(count, out, seed)), down = orthonormal(count, in, seed + 1);
  const auto sum = [&](int64_t most) {
    std::vector<float> kept = values;
    for (size_t i = size_t(most); i < kept.size(); ++i) kept[i] = 0;
    return matmul(up, down * Tensor::of(kept, {count, 1}));
  };
  return {sum(count), sum(rank)};
}

TEST(LowRank, TheLargestPartIsThatOfTheLargestSingularValues) {
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{24, 24}, {60, 24}, {24, 60}, {300, 120}, {150, 260}})
    for (const float decay : {0.8f, 0.97f})
      for (const int64_t rank : {1, 4, 16}) {
        std::vector<float> values;
        for (int64_t i = 0; i < std::min(out, in); ++i) values.push_back(3 * std::pow(decay, float(i)));
        const Known known = with_values(out, in, values, rank, uint64_t(out + in));
        const LowRank part = largest_part(known.whole, rank, "w");
        EXPECT_EQ(part.up.shape(), (Shape{out, rank}));
        EXPECT_EQ(part.down.shape(), (Shape{rank, in}));
        EXPECT_LE(size_of_all(product(part) - known.part), 2e-5 * size_of_all(known.whole))
            << out << "x" << in << ", rank " << rank << ", decay " << decay;
      }
}

TEST(LowRank, OfFewerThanItsRankOrAll) {
  const Known three = with_values(40, 30, {5, 2, 1}, 3, 7);
  EXPECT_LE(size_of_all(product(largest_part(three.whole, 8, "w")) - three.whole), 1e-5 * size_of_all(three.whole));
  const Tensor w = random({6, 9}, 8);
  EXPECT_LE(size_of_all(product(largest_part(w, 6, "w")) - w), 1e-5 * size_of_all(w));
  for (const Shape& shape : {Shape{5, 4}, Shape{60, 50}})
    EXPECT_EQ(size_of_all(product(largest_part(zeros(shape), 2, "w"))), 0);
}

TEST(LowRank, EqualSingularValuesAreRefused) {
  const Known known = with_values(40, 50, {4, 2, 2, 1}, 2, 9);
  expect_error([&] { largest_part(known.whole, 2, "here"); }, {"here", "singular values 2 and 3 are equal"});
  EXPECT_LE(size_of_all(product(largest_part(known.whole, 3, "w")) - with_values(40, 50, {4, 2, 2, 1}, 3, 9).part),
            1e-5 * size_of_all(known.whole));
}

// Q_r R_r is w in its first r columns, and the rest of w is orthogonal to them.
TEST(LowRank, TheFirstColumnsPartIsThatOfTheQr) {
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{20, 50}, {50, 20}}) {
    const Tensor w = random({out, in}, 11);
    const Tensor part = product(first_columns_part(w, 5, "w")), rest = w - part;
    EXPECT_LE(size_of_all(contiguous(slice(rest, 1, 0, 5))), 1e-5 * size_of_all(w));
    EXPECT_LE(size_of_all(matmul(transposed(contiguous(slice(w, 1, 0, 5))), rest)), 1e-4 * size_of_all(w));
    EXPECT_GT(size_of_all(rest), 0.1 * size_of_all(w));
  }
  const Tensor column = random({20, 1}, 12), twice = cat({column, column, random({20, 6}, 13)}, 1);
  expect_error([&] { first_columns_part(twice, 2, "here"); }, {"here", "first 2 columns depend"});
}

}  // namespace
}  // namespace wick
