// Gated activations against double precision.
#include <fmt/core.h>

#include <algorithm>

#include "backend/probe.h"

namespace wick {
namespace {

using namespace probe;

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double gelu(double x) { return x * normal_cdf(x); }
double gelu_slope(double x) { return normal_cdf(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI); }
double silu(double x) { return x * sigmoid(x); }
double silu_slope(double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }

struct Gate {
  void (Backend::*forward)(View, View);
  void (Backend::*backward)(View, View, View);
  double (*act)(double);
  double (*slope)(double);
  bool gate_first;
};
const Gate kGates[] = {{&Backend::geglu, &Backend::geglu_backward, gelu, gelu_slope, false},
                       {&Backend::swiglu, &Backend::swiglu_backward, silu, silu_slope, true}};

void check_gate(const Gate& gate, const Tensor& x, const Tensor& dy, Layout layout) {
  const Tensor y = poisoned(dy.shape(), layout, dy.dtype()), dx = poisoned(x.shape(), layout, x.dtype());
  (backend().*gate.forward)(y, x);
  (backend().*gate.backward)(dx, dy, x);
  const std::vector<double> in = doubles(x);
  std::vector<double> want = doubles(dy), want_dx = in;
  const size_t width = size_t(dy.dim(-1));
  for (size_t i = 0; i < want.size(); ++i) {
    const size_t first = i / width * 2 * width + i % width;
    const size_t v = first + (gate.gate_first ? width : 0), g = first + (gate.gate_first ? 0 : width);
    want_dx[v] = want[i] * gate.act(in[g]);
    want_dx[g] = want[i] * in[v] * gate.slope(in[g]);
    want[i] = in[v] * gate.act(in[g]);
  }
  expect_close(y, want, 4 * kEps, "gated");
  expect_close(dx, want_dx, 8 * kEps, "gated backward");
  const Tensor in_place = poisoned(x.shape(), layout, x.dtype());
  backend().copy(in_place, x);
  (backend().*gate.backward)(in_place, dy, in_place);
  expect_same_bits(in_place, dx, "gated backward in place");
}

TEST(Gated, every_layout_and_dtype) {
  for (const Gate& gate : kGates)
    for (Layout layout : kLayouts)
      for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        const int64_t width = between(1, 150);
        const Shape shape{between(1, 3), between(1, 40), width}, wide{shape[0], shape[1], 2 * width};
        check_gate(gate, random(wide, layout, dtype), random(shape, layout), layout);
      }
}

TEST(Gated, wide_rows) {
  for (const Gate& gate : kGates)
    for (int64_t width : {int64_t{64}, int64_t{640}, 8 * between(200, 400)}) {
      const Shape shape{2, between(1, 20), width}, wide{2, shape[1], 2 * width};
      check_gate(gate, input(wide), input(shape), Layout::packed);
    }
}

// Gates [B, D], which are parts of a wider row, beside all rows of an entry.
void check_gated_add(const Shape& shape, Layout layout, DType gates) {
  const int64_t width = shape.back();
  SCOPED_TRACE(testing::Message() << to_string(shape) << " layout " << int(layout) << " gates " << name_of(gates));
  const Tensor x = input(shape, layout), h = input(shape, layout), dy = input(shape, layout);
  const Tensor wide = random({shape[0], 3 * width}, Layout::packed, gates);
  const Tensor gate = wide.window({shape[0], width}, {3 * width, 1}, width);
  const Tensor y = output(shape, layout), dh = output(shape, layout), dgate = poisoned(gate.shape(), layout, gates);
  backend().gated_add(y, x, gate, h);
  backend().gated_add_backward(dh, dgate, dy, gate, h);
  Doubles want = doubles(x), want_dh = doubles(dy), want_dgate(size_t(shape[0] * width), 0.0);
  const Doubles of_h = doubles(h), of_gate = doubles(gate);
  for (size_t i = 0; i < want.size(); ++i) {
    const size_t at = i / size_t(shape[1] * width) * size_t(width) + i % size_t(width);
    want[i] += of_gate[at] * of_h[i];
    want_dgate[at] += want_dh[i] * of_h[i];
    want_dh[i] *= of_gate[at];
  }
  expect_close(y, want, 4 * kEps, "gated add");
  expect_close(dh, want_dh, 2 * kEps, "dh");
  expect_close(dgate, want_dgate, 4 * kEps * double(shape[1]), "dgate");
  const Tensor in_place = output(shape, layout), alone = output(shape, layout),
               other = poisoned(gate.shape(), layout, gates);
  backend().copy(in_place, x);
  backend().gated_add(in_place, in_place, gate, h);
  expect_same_bits(in_place, y, "gated add in place");
  backend().gated_add_backward(alone, {}, dy, gate, {});
  expect_same_bits(alone, dh, "dh alone");
  backend().gated_add_backward({}, other, dy, gate, h);
  expect_same_bits(other, dgate, "dgate alone");
}

TEST(Gated, AddsARowOfEachEntry) {
  for (Layout layout : kLayouts)
    for (const DType gates : {activations(), DType::f32})
      for (const int64_t width : {between(1, 70), 8 * between(1, 60), 8 * between(100, 400)})
        check_gated_add({between(1, 3), between(1, 90), width}, layout, gates);
  for (const int64_t width : {1536, 2432, 3072})
    check_gated_add({between(1, 2), between(400, 700), width}, Layout::packed,
                    between(0, 1) ? activations() : DType::f32);
}

// A gated sum and its modulated norm in one call: the bits of two calls.
void check_gated_add_norm(const Shape& shape, Layout layout, DType gates, bool modulated) {
  const int64_t width = shape.back();
  SCOPED_TRACE(testing::Message() << to_string(shape) << " layout " << int(layout) << " gates " << name_of(gates));
  const Tensor x = input(shape, layout), h = input(shape, layout);
  const Tensor wide = random({shape[0], 6 * width}, Layout::packed, gates);
  const auto part = [&](int64_t which) { return wide.window({shape[0], width}, {6 * width, 1}, which * width); };
  const auto statistic = [&] { return poisoned({shape[0], shape[1]}, layout); };
  const Tensor sum = output(shape, layout), y = output(shape, layout), mean = statistic(), rstd = statistic();
  const Modulation m = modulated ? Modulation{part(1), part(3)} : Modulation{};
  const Tensor want_sum = output(shape, layout), want = output(shape, layout), want_mean = statistic(),
               want_rstd = statistic();
  backend().gated_add(want_sum, x, part(5), h);
  backend().layer_norm({.y = want, .mean = want_mean, .rstd = want_rstd, .x = want_sum, .m = m, .eps = 1e-6f});
  backend().gated_add_norm({x, part(5), h}, {.y = y, .mean = mean, .rstd = rstd, .x = sum, .m = m, .eps = 1e-6f});
  expect_same_bits(sum, want_sum, "sum");
  expect_same_bits(y, want, "norm");
  expect_same_bits(mean, want_mean, "mean");
  expect_same_bits(rstd, want_rstd, "rstd");
}

TEST(Gated, NormsTheSumInTheSameCall) {
  for (const Layout layout : kLayouts)
    for (const DType gates : {activations(), DType::f32, DType::bf16})
      for (const int64_t width : {between(2, 70), 8 * between(1, 60), 8 * between(100, 400), int64_t{20488}})
        check_gated_add_norm({between(1, 3), between(1, width > 9000 ? 3 : 90), width}, layout, gates, between(0, 3));
  for (const int64_t width : {1536, 2432, 3072})
    check_gated_add_norm({between(1, 2), between(400, 700), width}, Layout::packed, activations(), true);
}

// The sum may have another dtype than its parts.
TEST(Gated, NormsASumOfAnotherDtype) {
  const Shape shape{2, between(3, 9), between(9, 99)};
  const Tensor x = random(shape, Layout::packed, DType::f32), h = random(shape, Layout::packed, DType::bf16);
  const Tensor gate = random({2, shape[2]}), sum = poisoned(shape, Layout::packed, DType::f32),
               want_sum = poisoned(shape, Layout::packed, DType::f32), y = output(shape), want = output(shape);
  backend().gated_add(want_sum, x, gate, h);
  backend().layer_norm({.y = want, .x = want_sum, .eps = 1e-6f});
  backend().gated_add_norm({x, gate, h}, {.y = y, .x = sum, .eps = 1e-6f});
  expect_same_bits(sum, want_sum, "sum");
  expect_same_bits(y, want, "norm");
}

// y [m, f] = SwiGLU of a linear with k inputs, in rows that are aligned to 16 bytes, with gaps between them.
void check_gated_linear(int64_t m, int64_t f, int64_t k) {
  const DType dtype = activations();
  const auto rows_of = [](const Tensor& t, int64_t cols) { return t.window({t.dim(0), cols}, t.stride()); };
  const auto with_gap = [](int64_t cols) { return (cols + 7) / 8 * 8 + 8 * between(0, 2); };
  const Tensor x = rows_of(random({m, with_gap(k)}, Layout::packed, dtype), k);
  const Tensor w = rows_of(random({2 * f, with_gap(k)}, Layout::packed, dtype), k);
  const Tensor y = rows_of(output({m, with_gap(f)}), f);
  const Tensor bias = between(0, 1) ? random({2 * f}, Layout::packed, between(0, 1) ? dtype : DType::f32) : Tensor();
  SCOPED_TRACE(testing::Message() << "m " << m << " f " << f << " k " << k << " bias " << bool(bias));
  const int64_t bad = between(0, m - 1);  // this token shows nowhere else
  if (dtype != DType::f32) x.data<uint16_t>()[bad * x.stride()[0]] = 0x7fff;
  backend().gated_linear(y, x, w, bias);

  Doubles in = doubles(x);
  if (dtype != DType::f32) std::fill_n(in.begin() + bad * k, k, 0.0);
  const Doubles weight = doubles(w), shift = bias ? doubles(bias) : Doubles(size_t(2 * f), 0.0);
  const Doubles sums = times(by_rows(in, m, k), by_rows(weight, 2 * f, k).transposed());
  const std::vector<float> got = y.to_vector();
  // The error of a sum of k products below 1. Both halves are rounded; a bias is too, and so is the sum it is added to.
  const double roundoff = dtype == DType::f32 ? 0 : unit_roundoff(dtype), sum_error = kEps * double(k + 1) * 2;
  const auto half_error = [&](double sum, double b) {
    const double before = bias ? std::abs(sum) + std::abs(b) : 0;
    return sum_error + roundoff * (std::abs(sum + b) + before + 2 * sum_error + 2 * roundoff * before);
  };
  size_t wrong = 0;
  for (int64_t i = 0; i < m * f; ++i) {
    const int64_t row = i / f, col = i % f;
    if (dtype != DType::f32 && row == bad) {
      wrong += !std::isnan(got[size_t(i)]);
      continue;
    }
    const size_t of_gate = size_t(row * 2 * f + col), of_value = of_gate + size_t(f);
    const double gate = sums[of_gate] + shift[size_t(col)], value = sums[of_value] + shift[size_t(f + col)];
    const double want = silu(gate) * value;
    const double gate_error = 1.1 * half_error(sums[of_gate], shift[size_t(col)]) + 8 * kEps * std::abs(silu(gate));
    const double value_error = half_error(sums[of_value], shift[size_t(f + col)]);
    const double error =
        gate_error * (std::abs(value) + value_error) + std::abs(silu(gate)) * value_error + roundoff * std::abs(want);
    const bool close = std::abs(got[size_t(i)] - want) <= error * (1 + roundoff) + 0x1p-24;
    if (!close && ++wrong <= 3)
      ADD_FAILURE() << "token " << row << " column " << col << ": got " << got[size_t(i)] << ", want " << want
                    << ", tolerance " << error;
  }
  EXPECT_EQ(wrong, 0u);
}

TEST(GatedLinear, OfManyTokens) {
  for (int round = 0; round < rounds(16); ++round) {
    const int64_t k = between(0, 1) ? 8 * between(60, 100) : between(450, 700), f = 8 * between(1, 90);
    check_gated_linear(256 * between(1, 3) - between(0, 32), f, k);
    if (round % 4 == 0) check_gated_linear(between(1600, 1800), 8 * between(1, 40), k);
    check_gated_linear(between(1, 400), f, between(1, 300));
  }
}

// Each tiling of CUDA's kernel (linear/extended_gemm.h), with several tiles per block.
TEST(GatedLinear, EveryPlan) {
  if (on_cpu() || activations() == DType::f32) GTEST_SKIP() << "no plans";
  for (const int wide : {128, 160, 192, 224, 256}) {
    const int narrow = 32 * int(between(4, wide / 32)), wide_tiles = int(between(0, rounds(40)));
    const std::string plan = fmt::format("sm90:0/1/2/{}/{}/{}", wide, wide_tiles, narrow);
    SCOPED_TRACE(plan);
    setenv("WICK_CUDA_WAY", plan.c_str(), 1);
    const int64_t f = (wide * wide_tiles + narrow * between(1, 3)) / 2 - 8 * between(0, 3);
    check_gated_linear(256 * between(2, 3) - between(0, 64), f, 8 * between(57, 80));
  }
  unsetenv("WICK_CUDA_WAY");
}

}  // namespace
}  // namespace wick
