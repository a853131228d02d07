// Gated activations against double precision.
#include "backend/probe.h"

namespace wick {
namespace {

using namespace probe;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
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

}  // namespace
}  // namespace wick
