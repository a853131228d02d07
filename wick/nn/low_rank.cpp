#include "wick/nn/low_rank.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "wick/core/error.h"
#include "wick/nn/named_seed.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/matmul.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;  // vectors; a block of them is a matrix

double dot(const Row& a, const Row& b) { return std::inner_product(a.begin(), a.end(), b.begin(), 0.0); }

void add(Row& to, double factor, const Row& row) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += factor * row[i];
}

void scale(Row& row, double factor) {
  for (double& value : row) value *= factor;
}

Rows rows_of(const Tensor& x) {
  const std::vector<float> values = x.to_vector();
  const size_t width = size_t(x.dim(1));
  Rows rows;
  for (size_t i = 0; i < values.size(); i += width) rows.emplace_back(&values[i], &values[i] + width);
  return rows;
}

Tensor tensor_of(const Rows& rows) {
  std::vector<float> values;
  for (const Row& row : rows) values.insert(values.end(), row.begin(), row.end());
  return Tensor::of(values, {int64_t(rows.size()), int64_t(rows.front().size())});
}

// Makes rows orthonormal by Gram and Schmidt, each twice, which is enough (Giraud et al., 2005). A row that the earlier
// ones span becomes zero.
void orthonormalize(Rows& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const double before = std::sqrt(dot(rows[i], rows[i]));
    for (int pass = 0; pass < 2; ++pass)
      for (size_t j = 0; j < i; ++j) add(rows[i], -dot(rows[i], rows[j]), rows[j]);
    const double left = std::sqrt(dot(rows[i], rows[i]));
    scale(rows[i], left > 1e-6 * before ? 1 / left : 0);  // smaller remainders are f32's rounding
  }
}

// a b^T
Rows products(const Rows& a, const Rows& b) {
  Rows all(a.size(), Row(b.size()));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < b.size(); ++j) all[i][j] = dot(a[i], b[j]);
  return all;
}

Rows combined(const Rows& factors, const Rows& rows) {
  Rows all(factors.size(), Row(rows.front().size()));
  for (size_t i = 0; i < factors.size(); ++i)
    for (size_t j = 0; j < rows.size(); ++j) add(all[i], factors[i][j], rows[j]);
  return all;
}

// The rotations that make the rows of a square matrix orthogonal (Jacobi, one-sided: Hestenes, 1958), longest first;
// `square` becomes their result. The lengths are its singular values.
Rows rotate_to_orthogonal(Rows& square) {
  const size_t n = square.size();
  Rows turns(n, Row(n));
  for (size_t i = 0; i < n; ++i) turns[i][i] = 1;
  bool turned = true;
  for (int sweep = 0; turned && sweep < 60; ++sweep) {
    turned = false;
    for (size_t i = 0; i < n; ++i)
      for (size_t j = i + 1; j < n; ++j) {
        const double a = dot(square[i], square[i]), b = dot(square[j], square[j]), c = dot(square[i], square[j]);
        if (std::abs(c) <= 1e-14 * std::sqrt(a * b)) continue;
        turned = true;
        const double zeta = (b - a) / (2 * c), t = std::copysign(1 / (std::abs(zeta) + std::hypot(1, zeta)), zeta);
        const double cosine = 1 / std::hypot(1, t), sine = cosine * t;
        for (Rows* rows : {&square, &turns})
          for (size_t k = 0; k < n; ++k) {
            const double x = (*rows)[i][k], y = (*rows)[j][k];
            (*rows)[i][k] = cosine * x - sine * y;
            (*rows)[j][k] = sine * x + cosine * y;
          }
      }
  }
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < n; ++i) order.emplace_back(-dot(square[i], square[i]), i);
  std::sort(order.begin(), order.end());
  Rows sorted, sorted_turns;
  for (const auto& [length, i] : order) {
    sorted.push_back(std::move(square[i]));
    sorted_turns.push_back(std::move(turns[i]));
  }
  square = std::move(sorted);
  return sorted_turns;
}

// The part of unit vectors `v` outside the span of the orthonormal `block`.
double outside(const Rows& v, const Rows& block) {
  double sum = 0;
  for (const Row& inside : products(v, block)) sum += std::max(0.0, 1 - dot(inside, inside));
  return std::sqrt(sum);
}

// w restricted to a block of inputs, turned so that its parts are orthogonal, largest first: w ≈ sum of u_i^T z_i with
// orthonormal u and orthogonal z, whose lengths are the singular values.
struct Turned {
  Rows u, z, inputs;  // `inputs`: orthonormal, of z's span
  std::vector<double> values;
};

Turned turned(const Tensor& w, const Rows& block) {
  Rows left = rows_of(linear(tensor_of(block), w));
  orthonormalize(left);
  const Rows z = rows_of(matmul(tensor_of(left), w));
  Turned t{{}, {}, z, {}};
  orthonormalize(t.inputs);
  Rows square = products(z, t.inputs);
  const Rows turns = rotate_to_orthogonal(square);
  t.u = combined(turns, left);
  t.z = combined(turns, z);
  for (const Row& row : square) t.values.push_back(std::sqrt(dot(row, row)));
  return t;
}

}  // namespace

LowRank largest_part(const Tensor& w, int64_t rank, const std::string& name) {
  constexpr double kError = 1e-6;  // of the largest singular value
  constexpr int kMost = 2000;
  const size_t r = size_t(rank), width = size_t(std::min({2 * rank + 16, w.dim(0), w.dim(1)}));
  Rng rng(named_seed(0, "largest_part"), Stream::init);
  Rows block = rows_of(random_normal({int64_t(width), w.dim(1)}, rng));
  orthonormalize(block);
  for (int iteration = 0; iteration < kMost; ++iteration) {
    const Turned t = turned(w, block);
    const double largest = t.values.front(), last = t.values[r - 1];
    Rows inputs;  // of the part, as unit vectors
    for (size_t i = 0; i < r && t.values[i] > kError * largest; ++i) {
      inputs.push_back(t.z[i]);
      scale(inputs.back(), 1 / t.values[i]);
    }
    // Each iteration leaves this share of the remainder, once that is small.
    const double share = last > 0 ? std::min(0.999, std::pow(t.values.back() / last, 2)) : 0;
    const bool whole = largest == 0 || (width == size_t(std::min(w.dim(0), w.dim(1))) && iteration > 0);
    const double missing = outside(inputs, block) * last / largest, rounding = 5e-7 * std::sqrt(double(r));
    const bool found = whole || (missing < 0.01 && (missing * share / (1 - share) <= kError || missing <= rounding));
    if (!found) {
      block = t.inputs;
      continue;
    }
    check(r == width || last <= kError * largest || last - t.values[r] > kError * last,
          "{}: its singular values {} and {} are equal: what PiSSA takes out of it is not known", name, r, r + 1);
    return {contiguous(permute(tensor_of({t.u.begin(), t.u.begin() + rank}), {1, 0})),
            tensor_of({t.z.begin(), t.z.begin() + rank})};
  }
  fail("{}: its largest singular vectors were not found in {} steps", name, kMost);
}

LowRank first_columns_part(const Tensor& w, int64_t rank, const std::string& name) {
  Rows columns = rows_of(contiguous(permute(slice(w, 1, 0, rank), {1, 0})));
  orthonormalize(columns);
  for (const Row& column : columns)
    check(dot(column, column) > 0,
          "{}: its first {} columns depend on each other: what OLoRA takes out of it is not known", name, rank);
  const Tensor down = tensor_of(columns);
  return {contiguous(permute(down, {1, 0})), matmul(down, w)};
}

}  // namespace wick
