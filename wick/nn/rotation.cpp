#include "wick/nn/rotation.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "wick/ops/elementwise.h"
#include "wick/ops/matmul.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

using Matrix = std::vector<double>;  // [N, N] by rows

// Gauss-Jordan elimination with row pivots: a becomes nothing of use, b the solution of a x = b. I - S is regular.
void solve(Matrix& a, Matrix& b, size_t n) {
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    for (size_t row = column + 1; row < n; ++row)
      if (std::abs(a[row * n + column]) > std::abs(a[pivot * n + column])) pivot = row;
    for (Matrix* m : {&a, &b})
      if (pivot != column)
        std::swap_ranges(m->begin() + ptrdiff_t(pivot * n), m->begin() + ptrdiff_t((pivot + 1) * n),
                         m->begin() + ptrdiff_t(column * n));
    const double inverse = 1 / a[column * n + column];
    for (size_t k = 0; k < n; ++k) a[column * n + k] *= inverse, b[column * n + k] *= inverse;
    for (size_t row = 0; row < n; ++row) {
      const double factor = a[row * n + column];
      if (row == column || factor == 0) continue;
      for (size_t k = 0; k < n; ++k) a[row * n + k] -= factor * a[column * n + k];
      for (size_t k = 0; k < n; ++k) b[row * n + k] -= factor * b[column * n + k];
    }
  }
}

Matrix product(const Matrix& a, const Matrix& b, size_t n) {
  Matrix c(n * n);
  for (size_t i = 0; i < n; ++i)
    for (size_t k = 0; k < n; ++k)
      for (size_t j = 0; j < n; ++j) c[i * n + j] += a[i * n + k] * b[k * n + j];
  return c;
}

// What `make` has of each matrix of the last two axes, which it gets by rows and may change.
template <class Make>
Tensor each_matrix(const Tensor& all, const Make& make) {
  const Tensor from = contiguous(all), to = Tensor::empty(all.shape(), DType::f32);
  const auto n = size_t(all.dim(-1));
  const float* values = from.data<float>();
  for (int64_t begin = 0; begin < all.numel(); begin += int64_t(n * n)) {
    Matrix matrix(values + begin, values + begin + n * n);
    make(matrix, n);
    std::ranges::transform(matrix, to.data<float>() + begin, [](double value) { return float(value); });
  }
  return to;
}

void bound(float* values, int64_t count, double most) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += double(values[i]) * values[i];
  const double norm = std::sqrt(sum), factor = norm > most ? most / norm : 1;
  for (int64_t i = 0; i < count; ++i) values[i] = float(values[i] * factor);
}

}  // namespace

// (I + S) (I - S)^-1 = (I - S)^-1 (I + S), less I: (I - S)^-1 2 S.
Tensor cayley(const Tensor& skew) {
  return each_matrix(skew, [](Matrix& s, size_t n) {
    Matrix left = s, right = s;
    for (double& value : left) value = -value;
    for (size_t i = 0; i < n; ++i) left[i * n + i] += 1;
    for (double& value : right) value *= 2;
    solve(left, right, n);
    s = std::move(right);
  });
}

Tensor cayley_neumann(const Tensor& skew, int64_t terms) {
  const int64_t last = std::max<int64_t>(terms, 4) - 1;
  return each_matrix(skew, [terms, last](Matrix& s, size_t n) {
    Matrix sum(n * n), power = s;
    const auto add = [&](double factor) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * power[i];
    };
    if (terms >= 2) add(2);
    for (int64_t degree = 2; terms >= 3 && degree <= last; ++degree) {
      power = product(power, s, n);
      add(degree < last ? 2 : 1);
    }
    s = std::move(sum);
  });
}

Tensor skew_part(const Tensor& blocks) { return contiguous(blocks - transpose(blocks, -1, -2)); }

std::optional<int64_t> side_of_entries(int64_t entries) {
  const auto n = int64_t(std::lround((1 + std::sqrt(1 + 8 * double(entries))) / 2));
  return entries > 0 && n * (n - 1) / 2 == entries ? std::optional(n) : std::nullopt;
}

Tensor skew_of_entries(const Tensor& entries) {
  const int64_t blocks = entries.dim(0), n = side_of_entries(entries.dim(1)).value_or(0);
  const Tensor from = contiguous(entries), all = zeros({blocks, n, n});
  const float* value = from.data<float>();
  for (float* matrix = all.data<float>(); matrix < all.data<float>() + all.numel(); matrix += n * n)
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = i + 1; j < n; ++j, ++value) {
        matrix[i * n + j] = *value;
        matrix[j * n + i] = -*value;
      }
  return all;
}

Tensor bounded_norm(const Tensor& x, double most) {
  const Tensor y = clone(x);
  bound(y.data<float>(), y.numel(), most);
  return y;
}

Tensor bounded_norms(const Tensor& x, double most) {
  const Tensor y = clone(x);
  const int64_t size = x.dim(-1) * x.dim(-2);
  for (int64_t begin = 0; begin < y.numel(); begin += size) bound(y.data<float>() + begin, size, most);
  return y;
}

Tensor rotated(const Tensor& x, const Tensor& change) {
  const int64_t blocks = change.dim(0), n = change.dim(1);
  if (blocks == 1) {
    const Tensor parts = reshape(x, {-1, n});
    return reshape(parts + matmul(parts, reshape(change, {n, n})), x.shape());
  }
  const Tensor parts = reshape(x, {-1, blocks, n});
  const Tensor turned = matmul(contiguous(transpose(parts, 0, 1)), change);  // [K, rows, N]
  return reshape(parts + transpose(turned, 0, 1), x.shape());
}

Tensor paired(const Tensor& x, int64_t h) {
  return reshape(contiguous(transpose(reshape(x, {-1, 2, h}), 1, 2)), x.shape());
}

Tensor unpaired(const Tensor& x, int64_t h) {
  return reshape(contiguous(transpose(reshape(x, {-1, h, 2}), 1, 2)), x.shape());
}

}  // namespace wick
