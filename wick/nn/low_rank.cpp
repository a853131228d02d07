#include "wick/nn/low_rank.h"

#define EIGEN_DONT_PARALLELIZE  // the thread pool is the backend's
#define EIGEN_MPL2_ONLY
#include <Eigen/QR>
#include <Eigen/SVD>
#include <algorithm>
#include <cmath>

#include "wick/core/error.h"
#include "wick/nn/named_seed.h"
#include "wick/ops/elementwise.h"
#include "wick/ops/matmul.h"
#include "wick/ops/random.h"
#include "wick/ops/shape.h"

namespace wick {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Matrix matrix_of(const Tensor& x) {
  const std::vector<float> values = x.to_vector();
  return Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
             values.data(), x.dim(0), x.numel() / x.dim(0))
      .cast<double>();
}

Tensor tensor_of(const Matrix& m) {
  const std::vector<float> values(m.data(), m.data() + m.size());
  return Tensor::of(values, {m.rows(), m.cols()});
}

Matrix first_rows(const Matrix& m, int64_t count) { return m.topRows(count); }

// x = q r with orthonormal columns of q.
struct Qr {
  Matrix q, r;

  explicit Qr(const Matrix& x) {
    const Eigen::Index k = std::min(x.rows(), x.cols());
    const Eigen::HouseholderQR<Matrix> decomposition(x);
    q = decomposition.householderQ() * Matrix::Identity(x.rows(), k);
    r = decomposition.matrixQR().topRows(k).triangularView<Eigen::Upper>();
  }
};

// x = sum of values_i left_i right_i^T, vectors being rows, the largest values first.
struct Svd {
  Eigen::VectorXd values;
  Matrix left, right;

  explicit Svd(const Matrix& x) {
    const Eigen::JacobiSVD<Matrix, Eigen::FullPivHouseholderQRPreconditioner> square(
        x, Eigen::ComputeFullU | Eigen::ComputeFullV);
    const Eigen::Index k = std::min(x.rows(), x.cols());
    values = square.singularValues();
    left = square.matrixU().leftCols(k).transpose();
    right = square.matrixV().leftCols(k).transpose();
  }
};

// w restricted to a block of inputs: w ≈ sum of values_i left_i right_i^T, of at most as many parts as the block has.
struct Restricted {
  Eigen::VectorXd values;
  Matrix left, right;  // orthonormal rows

  Restricted(const Tensor& w, const Matrix& block) {
    const Matrix range = Qr(matrix_of(linear(tensor_of(block), w)).transpose()).q.transpose();
    const Qr rows(matrix_of(matmul(tensor_of(range), w)).transpose());  // range w = rows.r^T rows.q^T
    const Svd core(rows.r.transpose());
    values = core.values;
    left = core.left * range;
    right = core.right * rows.q.transpose();
  }
};

// Orthonormal rows of normally distributed directions.
Matrix random_block(int64_t width, int64_t inputs, const char* seed) {
  Rng rng(named_seed(0, seed), Stream::init);
  return Qr(matrix_of(random_normal({inputs, width}, rng))).q.transpose();
}

// The part of unit vectors `v` outside the span of the orthonormal `block`.
double outside(const Matrix& v, const Matrix& block) {
  const Matrix inside = v * block.transpose();
  return std::sqrt((1 - inside.rowwise().squaredNorm().array()).max(0).sum());
}

std::vector<std::vector<double>> vectors_of(const Matrix& rows) {
  std::vector<std::vector<double>> all;
  for (Eigen::Index i = 0; i < rows.rows(); ++i)
    all.emplace_back(rows.data() + i * rows.cols(), rows.data() + (i + 1) * rows.cols());
  return all;
}

}  // namespace

LowRank largest_part(const Tensor& w, int64_t rank, const std::string& name) {
  constexpr double kError = 1e-6;  // of the largest singular value
  constexpr int kMost = 2000;
  const int64_t width = std::min({2 * rank + 16, w.dim(0), w.dim(1)});
  Matrix block = random_block(width, w.dim(1), "largest_part");
  for (int iteration = 0; iteration < kMost; ++iteration) {
    const Restricted t(w, block);
    const double largest = t.values[0], last = t.values[rank - 1];
    int64_t count = 0;  // of the part's inputs
    while (count < rank && t.values[count] > kError * largest) ++count;
    // Each iteration leaves this share of the remainder, once that is small.
    const double share = last > 0 ? std::min(0.999, std::pow(t.values[width - 1] / last, 2)) : 0;
    const bool whole = largest == 0 || (width == std::min(w.dim(0), w.dim(1)) && iteration > 0);
    const double missing = outside(first_rows(t.right, count), block) * last / largest,
                 rounding = 5e-7 * std::sqrt(double(rank));
    const bool found = whole || (missing < 0.01 && (missing * share / (1 - share) <= kError || missing <= rounding));
    if (!found) {
      block = t.right;
      continue;
    }
    check(rank == width || last <= kError * largest || last - t.values[rank] > kError * last,
          "{}: its singular values {} and {} are equal: what PiSSA takes out of it is not known", name, rank, rank + 1);
    return {tensor_of(first_rows(t.left, rank).transpose()),
            tensor_of(t.values.head(rank).asDiagonal() * first_rows(t.right, rank))};
  }
  fail("{}: its largest singular vectors were not found in {} steps", name, kMost);
}

LowRank first_columns_part(const Tensor& w, int64_t rank, const std::string& name) {
  const Matrix columns = matrix_of(contiguous(slice(w, 1, 0, rank)));
  const Qr qr(columns);
  for (int64_t i = 0; i < rank; ++i)  // smaller remainders are f32's rounding
    check(std::abs(qr.r(i, i)) > 1e-6 * columns.col(i).norm(),
          "{}: its first {} columns depend on each other: what OLoRA takes out of it is not known", name, rank);
  const Tensor up = tensor_of(qr.q);
  return {up, matmul(transpose(up, 0, 1), w)};
}

SingularParts SingularParts::of_product(const Tensor& up, const Tensor& down) {
  const Qr outer(matrix_of(up)), inner(matrix_of(down).transpose());
  const Svd core(outer.r * inner.r.transpose());
  SingularParts parts;
  parts.values_.assign(core.values.data(), core.values.data() + core.values.size());
  parts.left_ = vectors_of(core.left * outer.q.transpose());
  parts.right_ = vectors_of(core.right * inner.q.transpose());
  return parts;
}

SingularParts SingularParts::of_largest(const Tensor& w, int64_t count) {
  constexpr int kIterations = 4;
  const int64_t width = std::min({2 * count + 16, w.dim(0), w.dim(1)});
  Matrix block = random_block(width, w.dim(1), "largest_parts");
  for (int i = 0; i < kIterations; ++i) block = Restricted(w, block).right;
  const Restricted t(w, block);
  const Eigen::Index kept = std::min<Eigen::Index>(count, t.values.size());
  SingularParts parts;
  parts.values_.assign(t.values.data(), t.values.data() + kept);
  parts.left_ = vectors_of(t.left.topRows(kept));
  parts.right_ = vectors_of(t.right.topRows(kept));
  return parts;
}

int64_t SingularParts::rank_of_energy(double share) const {
  double all = 0, sum = 0;
  for (const double value : values_) all += value * value;
  int64_t rank = 0;
  while (rank < int64_t(values_.size()) && (rank == 0 || sum < share * all)) {
    sum += values_[size_t(rank)] * values_[size_t(rank)];
    ++rank;
  }
  return rank;
}

LowRank SingularParts::nearest(int64_t rank) const {
  std::vector<float> up, down;
  for (size_t row = 0; row < left_.front().size(); ++row)
    for (size_t i = 0; i < size_t(rank); ++i) up.push_back(float(left_[i][row] * std::sqrt(values_[i])));
  for (size_t i = 0; i < size_t(rank); ++i)
    for (const double value : right_[i]) down.push_back(float(value * std::sqrt(values_[i])));
  return {Tensor::of(up, {int64_t(left_.front().size()), rank}),
          Tensor::of(down, {rank, int64_t(right_.front().size())})};
}

double norm_of_product(const Tensor& up, const Tensor& down) {
  const Matrix u = matrix_of(up), d = matrix_of(down);
  if (u.cols() > std::min(u.rows(), d.cols())) return (u * d).norm();  // a square of their ranks may be too large
  return std::sqrt(std::max(0.0, (u.transpose() * u).cwiseProduct(d * d.transpose()).sum()));
}

}  // namespace wick
