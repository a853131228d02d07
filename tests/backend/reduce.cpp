// Sums over any axes, softmax, the squared error and the sum of squares, against double precision.
#include <algorithm>

#include "backend/probe.h"

namespace wick {
namespace {

using namespace probe;

std::vector<double> sum_reference(const Tensor& x, const Shape& target) {
  const std::vector<double> values = doubles(x);
  std::vector<double> sums(size_t(target.numel()), 0.0);
  const Shape stride = contiguous_strides(target);
  for (int64_t i = 0; i < x.numel(); ++i) {
    int64_t rest = i, offset = 0;
    for (int d = x.rank() - 1; d >= 0; rest /= x.dim(d), --d)
      if (target[d] != 1) offset += rest % x.dim(d) * stride[d];
    sums[size_t(offset)] += values[size_t(i)];
  }
  return sums;
}

TEST(Sum, over_every_set_of_axes) {
  for (unsigned mask = 0; mask < 16; ++mask)
    for (Layout layout : kLayouts) {
      const Shape shape{between(1, 4), between(1, 40), between(1, 9), between(1, 70)};
      Shape target = shape;
      for (int d = 0; d < 4; ++d)
        if (mask >> d & 1) target[d] = 1;
      const Tensor x = input(shape, layout), y = output(target, layout);
      backend().sum(y, x);
      expect_close(y, sum_reference(x, target), 8 * kEps * std::sqrt(double(x.numel() / y.numel())) + 4 * kEps, "sum");
    }
}

TEST(Sum, of_millions) {
  const int64_t rows = between(9000, 10000), columns = between(0, 1) ? between(300, 350) : 320;
  const Tensor x = input({rows, columns}), y = output({1, columns}), again = output({1, columns});
  backend().sum(y, x);
  backend().sum(again, x);
  expect_close(y, sum_reference(x, {1, columns}), 8 * kEps * std::sqrt(double(rows)), "columns");
  expect_same_bits(y, again, "columns");
  const Tensor all = poisoned({1, 1});
  backend().sum(all, x);
  const double want = sum_reference(x, {1, 1})[0];
  EXPECT_NEAR(all.item(), want, kEps * (1 + std::abs(want)));
}

TEST(Sum, of_an_expanded_view) {
  const Tensor x = random({5, 1}).window({5, 300}, {1, 0}), y = poisoned({1, 300});
  backend().sum(y, x);
  expect_close(y, sum_reference(x, {1, 300}), 4 * kEps, "expanded");
}

TEST(Softmax, rows) {
  for (Layout layout : kLayouts)
    for (float scale : {1.0f, 50.0f}) {
      const int64_t n = between(1, 200);
      const Tensor x = random({between(1, 4), between(1, 30), n}, layout), dy = random(x.shape(), layout);
      backend().affine(x, x, scale, 7);
      const Tensor y = poisoned(x.shape(), layout), dx = poisoned(x.shape(), layout);
      backend().softmax(y, x);
      std::vector<double> want = doubles(x), want_dx = doubles(dy);
      for (size_t row = 0; row < want.size(); row += size_t(n)) {
        double maximum = -1e300, total = 0, dot = 0;
        for (size_t i = row; i < row + size_t(n); ++i) maximum = std::max(maximum, want[i]);
        for (size_t i = row; i < row + size_t(n); ++i) total += want[i] = std::exp(want[i] - maximum);
        for (size_t i = row; i < row + size_t(n); ++i) dot += want_dx[i] * (want[i] /= total);
        for (size_t i = row; i < row + size_t(n); ++i) want_dx[i] = want[i] * (want_dx[i] - dot);
      }
      expect_close(y, want, 4 * kEps, "softmax");
      backend().softmax_backward(dx, dy, y);
      expect_close(dx, want_dx, 16 * kEps, "softmax_backward");
    }
}

TEST(Softmax, masks_and_nan) {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor x = Tensor::of(std::vector<float>{-inf, 0, -inf, 0, 1, NAN, 2, 3}, {2, 4}), y = poisoned({2, 4});
  backend().softmax(y, x);
  EXPECT_EQ(y.data<float>()[0], 0);
  EXPECT_FLOAT_EQ(y.data<float>()[1], 0.5f);
  for (int i = 4; i < 8; ++i) EXPECT_TRUE(std::isnan(y.data<float>()[i]));
}

TEST(Mse, loss_and_gradient) {
  for (Layout layout : kLayouts)
    for (int64_t extent : {between(1, 20), between(200, 300)}) {
      const Tensor a = input({2, extent, extent + 1}, layout), b = random(a.shape());
      const Tensor loss = poisoned({1}), again = poisoned({1}), da = output(a.shape(), layout);
      backend().mse(loss, a, b);
      backend().mse(again, a, b);
      std::vector<double> want = doubles(a);
      const std::vector<double> target = doubles(b);
      double total = 0;
      const float dloss = 1.5f;
      for (size_t i = 0; i < want.size(); ++i) {
        const double difference = want[i] - target[i];
        total += difference * difference;
        want[i] = dloss * 2 * difference / double(want.size());
      }
      EXPECT_NEAR(loss.item(), total / double(want.size()), 2 * kEps);
      expect_same_bits(loss, again, "mse");
      backend().mse_backward(da, Tensor::of(std::vector<float>{dloss}, {1}), a, b);
      expect_close(da, want, 16 * kEps / double(want.size()), "mse_backward");
    }
}

TEST(CrossEntropy, loss_and_gradient) {
  for (const Layout layout : {Layout::packed, Layout::gapped, Layout::spread})
    for (const int64_t classes : {int64_t{1}, between(2, 40), between(900, 40000)}) {
      const int64_t rows = between(2, 9);
      const Tensor small = random({rows, classes}), logits = poisoned({rows, classes}, layout),
                   slopes = poisoned({rows, classes}, layout);
      const Tensor ids = random_ids({rows}, classes), loss = poisoned({rows}), alone = poisoned({rows});
      ids.data<int64_t>()[1] = -100;
      cpu_backend().affine(logits, small, 30, 5);  // probabilities from almost 0 to almost 1
      std::vector<double> want = doubles(logits), losses;
      for (int64_t i = 0; i < rows; ++i) {
        double* row = want.data() + i * classes;
        const double highest = *std::max_element(row, row + classes);
        double sum = 0;
        for (int64_t j = 0; j < classes; ++j) sum += std::exp(row[j] - highest);
        const int64_t id = ids.data<int64_t>()[i];
        losses.push_back(id < 0 ? 0 : highest + std::log(sum) - row[id]);
        for (int64_t j = 0; j < classes; ++j)
          row[j] = id < 0 ? 0 : std::exp(row[j] - highest) / sum - (j == id ? 1 : 0);
      }
      backend().cross_entropy(loss, slopes, logits, ids);
      backend().cross_entropy(alone, {}, logits, ids);
      // The rounding of f32: a sum of exponentials and its logarithm, of up to 11 (8 epsilons each), the log-sum-exp,
      // of up to 46 (16), and the loss, of up to 71 (32).
      expect_close(loss, losses, 64 * kEps, "loss");
      expect_same_bits(loss, alone, "loss");
      expect_close(slopes, want, 64 * kEps, "gradient");
      backend().cross_entropy(loss, logits, logits, ids);
      expect_same_bits(logits, slopes, "gradient in place");
    }
}

TEST(CrossEntropy, large_logits_and_nan) {
  const Tensor logits = Tensor::of(std::vector<float>{1e30f, -1e30f, NAN, 0}, {2, 2}), loss = poisoned({2});
  backend().cross_entropy(loss, {}, logits, Tensor::of(std::vector<int64_t>{0, 1}, {2}));
  EXPECT_EQ(loss.data<float>()[0], 0);
  EXPECT_TRUE(std::isnan(loss.data<float>()[1]));
}

TEST(SumOfSquares, several_tensors) {
  const Tensor a = random({between(1, 50000)}), b = random({between(1, 90), between(1, 90)}, Layout::swapped);
  const Tensor total = poisoned({1});
  backend().sum_of_squares(total, {a, b});
  double want = 0;
  for (const Tensor& t : {a, b})
    for (double v : doubles(t)) want += v * v;
  EXPECT_NEAR(total.item(), want, kEps * want);
  backend().sum_of_squares(total, {});
  EXPECT_EQ(total.item(), 0);
}

TEST(SumOfSquares, of_thousands_of_tensors) {
  std::vector<Tensor> tensors;
  std::vector<View> views;
  double want = 0;
  for (int64_t i = between(2000, 2500); i > 0; --i) {
    tensors.push_back(random({between(0, 40)}));
    views.push_back(tensors.back());
    for (double v : doubles(tensors.back())) want += v * v;
  }
  const Tensor total = poisoned({1}), again = poisoned({1});
  backend().sum_of_squares(total, views);
  backend().sum_of_squares(again, views);
  EXPECT_NEAR(total.item(), want, kEps * want);
  expect_same_bits(total, again, "sum_of_squares");
}

TEST(SumOfSquares, shows_what_is_not_finite) {
  for (float bad : {NAN, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    const Tensor x = random({between(1, 40000)}), total = poisoned({1});
    x.data<float>()[between(0, x.numel() - 1)] = bad;
    backend().sum_of_squares(total, {random({7}), x});
    EXPECT_FALSE(std::isfinite(total.item()));
  }
}

}  // namespace
}  // namespace wick
