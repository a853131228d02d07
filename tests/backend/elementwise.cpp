// Elementwise kernels against double precision: every op, layout, dtype and way of broadcasting.
#include <algorithm>

#include "backend/probe.h"

namespace wick {
namespace {

using namespace probe;

double value(Unary op, double x) {
  switch (op) {
    case Unary::silu:
      return x * sigmoid(x);
    case Unary::gelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Unary::gelu_tanh:
      return x * sigmoid(2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    case Unary::quick_gelu:
      return x * sigmoid(1.702 * x);
    case Unary::exp:
      return std::exp(x);
    case Unary::square:
      return x * x;
    case Unary::rsqrt:
      return 1 / std::sqrt(x);
  }
  return 0;
}

double slope(Unary op, double x) {
  const auto gated = [&](double v, double dv) { return sigmoid(v) * (1 + x * dv * (1 - sigmoid(v))); };
  switch (op) {
    case Unary::silu:
      return gated(x, 1);
    case Unary::gelu:
      return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    case Unary::gelu_tanh: {
      const double c = 2 * std::sqrt(2 / M_PI);
      return gated(c * (x + 0.044715 * x * x * x), c * (1 + 3 * 0.044715 * x * x));
    }
    case Unary::quick_gelu:
      return gated(1.702 * x, 1.702);
    case Unary::exp:
      return std::exp(x);
    case Unary::square:
      return 2 * x;
    case Unary::rsqrt:
      return -0.5 / (x * std::sqrt(x));
  }
  return 0;
}

// Those that are defined for all numbers.
constexpr Unary kUnary[] = {Unary::silu, Unary::gelu, Unary::gelu_tanh, Unary::quick_gelu, Unary::exp, Unary::square};
constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};

double epsilon(DType dtype) { return dtype == DType::f32 ? kEps : dtype == DType::f16 ? 0x1p-10 : 0x1p-7; }

// Half of the rows divide into packs of 16 bytes.
int64_t random_width(int64_t most) { return between(0, 1) ? between(1, most) : 8 * between(1, (most + 7) / 8); }

Shape random_shape() { return {between(1, 3), between(1, 9), random_width(70)}; }

TEST(Elementwise, unary) {
  for (Unary op : kUnary)
    for (Layout to : kLayouts)
      for (Layout from : kLayouts)
        for (DType dtype : kFloats) {
          const Shape shape = random_shape();
          const Tensor x = random(shape, from, dtype), dy = random(shape, to, dtype);
          const Tensor y = poisoned(shape, to, dtype), dx = poisoned(shape, from, dtype);
          backend().unary(op, y, x);
          backend().unary_backward(op, dx, dy, x);
          std::vector<double> want = doubles(x), want_dx = doubles(dy);
          for (size_t i = 0; i < want.size(); ++i) want_dx[i] *= slope(op, want[i]), want[i] = value(op, want[i]);
          expect_close(y, want, 4 * 3 * epsilon(dtype), "unary");
          expect_close(dx, want_dx, 4 * 3 * epsilon(dtype), "unary_backward");
        }
}

// Relative accuracy, except in the cancellation of a negative tail's slope.
TEST(Elementwise, unary_over_the_whole_range) {
  std::vector<float> points;
  for (int e = -30; e <= 4; ++e)
    for (int i = 0; i < 64; ++i)
      for (float sign : {-1.0f, 1.0f}) points.push_back(sign * std::ldexp(1 + rng().uniform(), e));
  const int64_t n = int64_t(points.size());
  const Tensor x = Tensor::of(points, {n}), one = Tensor::of(std::vector<float>(points.size(), 1.0f), {n});
  for (Unary op : kUnary) {
    const Tensor y = poisoned({n}), dx = poisoned({n});
    backend().unary(op, y, x);
    backend().unary_backward(op, dx, one, x);
    double worst = 0, worst_slope = 0;
    for (size_t i = 0; i < points.size(); ++i) {
      const double v = points[i];
      // exp(-u) turns u's rounding into a relative error of |u| eps; below f32's range both are zero.
      const double grace =
          1 + std::abs(v) + (op == Unary::gelu || op == Unary::gelu_tanh ? v * v + std::abs(v * v * v) / 8 : 0);
      worst = std::max(worst, std::abs(y.data<float>()[i] - value(op, v)) / (grace * std::abs(value(op, v)) + 1e-30));
      worst_slope = std::max(worst_slope, std::abs(dx.data<float>()[i] - slope(op, v)) /
                                              (std::max(1.0, std::abs(v)) * std::max(1.0, std::abs(slope(op, v)))));
    }
    EXPECT_LT(worst, 5e-7) << int(op);
    EXPECT_LT(worst_slope, 5e-7) << int(op);
  }
}

TEST(Elementwise, unary_keeps_nan_and_saturates) {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor x = Tensor::of(std::vector<float>{NAN, 1000, -1000, inf, -inf}, {5});
  for (Unary op : kUnary) {
    const Tensor y = poisoned({5}), dx = poisoned({5});
    backend().unary(op, y, x);
    backend().unary_backward(op, dx, Tensor::of(std::vector<float>(5, 1.0f), {5}), x);
    EXPECT_TRUE(std::isnan(y.data<float>()[0]) && std::isnan(dx.data<float>()[0])) << int(op);
    EXPECT_EQ(y.data<float>()[1], float(value(op, 1000))) << int(op);
    EXPECT_EQ(y.data<float>()[2], float(value(op, -1000))) << int(op);
    EXPECT_EQ(dx.data<float>()[1], float(slope(op, 1000))) << int(op);
    EXPECT_EQ(dx.data<float>()[2], float(slope(op, -1000))) << int(op);
  }
  Tensor y = poisoned({5});
  backend().unary(Unary::exp, y, x);
  EXPECT_EQ(y.data<float>()[3], inf);
  EXPECT_EQ(y.data<float>()[4], 0);
}

TEST(Elementwise, rsqrt) {
  for (Layout to : kLayouts)
    for (Layout from : kLayouts)
      for (DType dtype : kFloats) {
        const Shape shape = random_shape();
        const Tensor x = random(shape, from, dtype), dy = random(shape, to, dtype);
        backend().affine(x, x, 6, 0);
        backend().unary(Unary::exp, x, x);
        const Tensor y = poisoned(shape, to, dtype), dx = poisoned(shape, from, dtype);
        backend().unary(Unary::rsqrt, y, x);
        backend().unary_backward(Unary::rsqrt, dx, dy, x);
        const std::vector<double> at = doubles(x), given = doubles(dy), got = doubles(y), got_dx = doubles(dx);
        for (size_t i = 0; i < at.size(); ++i) {
          const double want = value(Unary::rsqrt, at[i]), want_dx = given[i] * slope(Unary::rsqrt, at[i]);
          // Below the least normal number of f16 its step is absolute.
          EXPECT_NEAR(got[i], want, 4 * epsilon(dtype) * want) << at[i];
          EXPECT_NEAR(got_dx[i], want_dx, 4 * epsilon(dtype) * std::max(std::abs(want_dx), 0x1p-14)) << at[i];
        }
      }
}

// x broadcast along the axes of `mask`.
Tensor broadcast(const Shape& shape, unsigned mask, DType dtype) {
  Shape small = shape;
  for (int d = 0; d < shape.rank(); ++d)
    if (mask >> d & 1) small[d] = 1;
  const Tensor t = random(small, Layout::packed, dtype);
  Shape stride = t.stride();
  for (int d = 0; d < shape.rank(); ++d)
    if (mask >> d & 1) stride[d] = 0;
  return t.window(shape, stride);
}

double value(Binary op, double a, double b) { return op == Binary::add ? a + b : op == Binary::sub ? a - b : a * b; }

TEST(Elementwise, binary_broadcasts) {
  for (Binary op : {Binary::add, Binary::sub, Binary::mul})
    for (unsigned mask_a = 0; mask_a < 16; ++mask_a)
      for (unsigned mask_b = 0; mask_b < 16; ++mask_b) {
        const Shape shape{between(1, 3), between(1, 5), between(1, 5), random_width(200)};
        const DType dtype = kFloats[between(0, 2)];
        const Tensor a = broadcast(shape, mask_a, dtype);
        const Tensor b = broadcast(shape, mask_b, between(0, 1) ? dtype : DType::f32);
        const Tensor y = poisoned(shape, kLayouts[between(0, 3)], between(0, 1) ? dtype : DType::f32);
        backend().binary(op, y, a, b);
        std::vector<double> want = doubles(a);
        const std::vector<double> right = doubles(b);
        for (size_t i = 0; i < want.size(); ++i) want[i] = value(op, want[i], right[i]);
        expect_close(y, want, kEps, "binary");
      }
}

// Large enough for several blocks and threads.
TEST(Elementwise, large_and_the_same_bits) {
  const Shape shape{2, between(60, 70), between(30, 40), random_width(50)};
  const Tensor a = input(shape), b = broadcast(shape, 0b0110, activations());
  const Tensor y = output(shape), again = output(shape);
  backend().binary(Binary::mul, y, a, b);
  backend().binary(Binary::mul, again, a, b);
  std::vector<double> want = doubles(a);
  const std::vector<double> right = doubles(b);
  for (size_t i = 0; i < want.size(); ++i) want[i] *= right[i];
  expect_close(y, want, kEps, "binary");
  expect_same_bits(y, again, "binary");
}

TEST(Elementwise, affine_and_accumulate) {
  for (Layout layout : kLayouts)
    for (DType dtype : kFloats) {
      const Shape shape = random_shape();
      const Tensor x = random(shape, layout, dtype), y = poisoned(shape, layout), sum = random(shape, layout);
      backend().affine(y, x, -1.5f, 0.25f);
      std::vector<double> want = doubles(x), want_sum = doubles(sum);
      backend().accumulate(sum, x, 0.75f);
      for (size_t i = 0; i < want.size(); ++i) want_sum[i] += 0.75 * want[i], want[i] = -1.5 * want[i] + 0.25;
      expect_close(y, want, 2 * kEps, "affine");
      expect_close(sum, want_sum, 2 * kEps, "accumulate");
    }
}

TEST(Elementwise, clamp) {
  for (Layout layout : kLayouts)
    for (DType dtype : kFloats) {
      const Shape shape = random_shape();
      const Tensor x = random(shape, layout, dtype), dy = random(shape, Layout::packed, dtype);
      const Tensor y = poisoned(shape, layout, dtype), dx = poisoned(shape, Layout::packed, dtype);
      backend().clamp(y, x, -0.25f, 0.5f);
      backend().clamp_backward(dx, dy, x, -0.25f, 0.5f);
      std::vector<double> want = doubles(x), want_dx = doubles(dy);
      for (size_t i = 0; i < want.size(); ++i) {
        if (want[i] < -0.25 || want[i] > 0.5) want_dx[i] = 0;
        want[i] = std::clamp(want[i], -0.25, 0.5);
      }
      expect_close(y, want, 0, "clamp");
      expect_close(dx, want_dx, 0, "clamp_backward");
    }
  const Tensor x = Tensor::of(std::vector<float>{NAN, -INFINITY, INFINITY}, {3}), y = poisoned({3});
  backend().clamp(y, x, -1, 1);
  EXPECT_TRUE(std::isnan(y.data<float>()[0]));
  EXPECT_EQ(y.data<float>()[1], -1);
  EXPECT_EQ(y.data<float>()[2], 1);
}

// Columns of wider matrices, aligned to packs, as a feed-forward beside attention has them.
TEST(Elementwise, ColumnsOfWiderMatrices) {
  const int64_t rows = between(30, 60), width = 8 * between(100, 300);
  const auto columns = [&](const Tensor& wide) {
    return wide.window({1, rows, width}, {rows * wide.dim(1), wide.dim(1), 1}, wide.dim(1) - width);
  };
  const auto beside = [&] { return width + 8 * between(1, 200); };
  const Tensor x = columns(input({rows, beside()})), dy = columns(input({rows, beside()}));
  const Tensor y = columns(output({rows, beside()})), dx = columns(output({rows, beside()}));
  const Tensor sum = columns(output({rows, beside()})), copied = columns(output({rows, beside()}));
  backend().unary(Unary::gelu_tanh, y, x);
  backend().unary_backward(Unary::gelu_tanh, dx, dy, x);
  backend().binary(Binary::add, sum, x, dy);
  backend().copy(copied, x);
  Doubles want = doubles(x), want_dx = doubles(dy), want_sum = doubles(dy);
  expect_close(copied, want, 0, "copy");
  for (size_t i = 0; i < want.size(); ++i) {
    want_sum[i] += want[i];
    want_dx[i] *= slope(Unary::gelu_tanh, want[i]);
    want[i] = value(Unary::gelu_tanh, want[i]);
  }
  expect_close(y, want, 12 * epsilon(activations()), "unary");
  expect_close(dx, want_dx, 12 * epsilon(activations()), "unary_backward");
  expect_close(sum, want_sum, kEps, "add");
}

TEST(Elementwise, in_place) {
  for (Layout layout : kLayouts) {
    const Tensor x = input(random_shape(), layout);
    std::vector<double> want = doubles(x);
    for (double& v : want) v = 2 * v * v + 1;
    backend().unary(Unary::square, x, x);
    backend().affine(x, x, 2, 1);
    expect_close(x, want, 4 * unit_roundoff(activations()), "in place");
  }
}

TEST(Elementwise, empty_tensors_and_single_elements) {
  const Tensor none = Tensor::empty({0, 3}), one = Tensor::of(std::vector<float>{3}, {1});
  backend().unary(Unary::exp, none, none);
  const Tensor y = poisoned({1});
  backend().unary(Unary::square, y, one);
  EXPECT_EQ(y.item(), 9);
}

}  // namespace
}  // namespace wick
