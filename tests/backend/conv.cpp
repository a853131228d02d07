#include <algorithm>

#include "backend/probe.h"

namespace wick {
namespace {

using namespace probe;

struct Case {
  int64_t batch, height, width, in, out, kh, kw;
  Conv2d conv;
  int64_t out_height = (height + conv.top + conv.bottom - kh) / conv.stride + 1;
  int64_t out_width = (width + conv.left + conv.right - kw) / conv.stride + 1;

  Shape x_shape() const { return {batch, height, width, in}; }
  Shape y_shape() const { return {batch, out_height, out_width, out}; }
  Shape w_shape() const { return {out, kh, kw, in}; }
};

// Calls f(x index, w index, y index) for every product in the convolution's sums.
template <class F>
void for_each_product(const Case& c, F f) {
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t i = 0; i < c.out_height; ++i)
      for (int64_t j = 0; j < c.out_width; ++j)
        for (int64_t p = 0; p < c.kh; ++p)
          for (int64_t q = 0; q < c.kw; ++q) {
            const int64_t h = i * c.conv.stride + p - c.conv.top, w = j * c.conv.stride + q - c.conv.left;
            if (h < 0 || h >= c.height || w < 0 || w >= c.width) continue;
            for (int64_t o = 0; o < c.out; ++o)
              for (int64_t n = 0; n < c.in; ++n)
                f(size_t(((b * c.height + h) * c.width + w) * c.in + n), size_t(((o * c.kh + p) * c.kw + q) * c.in + n),
                  size_t(((b * c.out_height + i) * c.out_width + j) * c.out + o));
          }
}

Doubles zeros(const Shape& shape) { return Doubles(size_t(shape.numel()), 0.0); }

double tolerance(int64_t terms) { return kEps * double(terms + 4); }

// A bias (below 1) may be added in the activations' dtype, to a product already rounded to it.
double rounded_before_bias(double y) {
  return activations() == DType::f32 ? 0 : (std::abs(y) + 1) * unit_roundoff(activations());
}

// Nothing, a row for each image, or the whole.
Tensor random_addend(const Case& c) {
  const uint64_t way = rng().below(3);
  if (way == 0) return {};
  return way == 1 ? input({c.batch, 1, 1, c.out}).window(c.y_shape(), {c.out, 0, 0, 1})
                  : input(c.y_shape(), kLayouts[rng().below(4)]);
}

Case random_case(int stride, bool asymmetric) {
  Case c{between(1, 2), between(5, 19), between(5, 19), between(1, 70), between(1, 70), 3, 3, {stride, 1, 1, 1, 1}};
  if (asymmetric) c.conv = {stride, 0, 0, 1, 1};
  return {c.batch, c.height, c.width, c.in, c.out, c.kh, c.kw, c.conv};
}

// The weights as the kernel uses them: in the activations' dtype.
Doubles weights(const Tensor& w) {
  const Tensor converted = output(w.shape());
  cpu_backend().copy(converted, w);
  return doubles(converted);
}

std::vector<Case> cases() {
  return {random_case(1, false),
          random_case(2, false),
          random_case(1, true),
          random_case(2, true),
          {2, 7, 6, 4, 32, 3, 3, {1, 1, 1, 1, 1}},
          {1, 8, 9, 33, 3, 3, 3, {1, 1, 1, 1, 1}},
          {2, 5, 7, 19, 23, 1, 1, {}},
          {1, 6, 6, 8, 5, 1, 1, {2}},
          {1, 9, 12, 6, 7, 5, 2, {1, 2, 1, 2, 0}},
          {1, 5, 5, 3, 4, 2, 2, {1, 3, 3, 3, 3}},
          {2, 28, 28, 3, 24, 14, 14, {14}},
          {1, 6, 7, 320, 64, 3, 3, {1, 1, 1, 1, 1}},  // SDXL's channels: inside, at both ends,
          {1, 8, 8, 4, 320, 3, 3, {1, 1, 1, 1, 1}},
          {1, 8, 7, 320, 4, 3, 3, {1, 1, 1, 1, 1}},
          {1, 8, 8, 96, 128, 3, 3, {2, 0, 0, 1, 1}}};  // and where the VAE halves images
}

TEST(Conv2d, ForwardInEveryWeightTypeAndLayout) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Case& c : cases()) {
      const Tensor x = input(c.x_shape(), kLayouts[rng().below(4)]);
      const Tensor w = random(c.w_shape(), kLayouts[rng().below(4)], dtype);
      const Tensor bias = rng().below(2) ? random({c.out}) : Tensor(),
                   y = output(c.y_shape(), kLayouts[rng().below(4)]);
      const Tensor added = random_addend(c);
      backend().conv2d(y, x, w, bias, added ? added.view() : View{}, c.conv);
      Doubles want = added ? doubles(added) : zeros(c.y_shape());
      if (bias)
        for (size_t i = 0; i < want.size(); ++i) want[i] += bias.data<float>()[i % size_t(c.out)];
      const Doubles dx = doubles(x), dw = weights(w);
      for_each_product(c, [&](size_t xi, size_t wi, size_t yi) { want[yi] += dx[xi] * dw[wi]; });
      double largest = 0;
      for (double value : want) largest = std::max(largest, std::abs(value));
      expect_close(y, want, tolerance(c.in * c.kh * c.kw) + (bias || added ? rounded_before_bias(largest) : 0),
                   "conv2d");
    }
}

TEST(Conv2d, BackwardInput) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Case& c : cases()) {
      const Tensor dy = input(c.y_shape(), kLayouts[rng().below(4)]);
      const Tensor w = random(c.w_shape(), kLayouts[rng().below(4)], dtype);
      const Tensor dx = output(c.x_shape(), kLayouts[rng().below(4)]);
      backend().conv2d_backward_input(dx, dy, w, c.conv);
      Doubles want = zeros(c.x_shape());
      const Doubles grad = doubles(dy), dw = weights(w);
      for_each_product(c, [&](size_t xi, size_t wi, size_t yi) { want[xi] += grad[yi] * dw[wi]; });
      expect_close(dx, want, tolerance(c.out * c.kh * c.kw), "dx");
    }
}

TEST(Conv2d, BackwardWeightAndEachOutputUnwanted) {
  for (int wanted = 1; wanted < 4; ++wanted)
    for (const Case& c : cases()) {
      const Tensor dy = input(c.y_shape(), kLayouts[rng().below(4)]), x = input(c.x_shape(), kLayouts[rng().below(4)]);
      const Tensor dw = wanted & 1 ? poisoned(c.w_shape(), kLayouts[rng().below(4)]) : Tensor();
      const Tensor dbias = wanted & 2 ? poisoned({c.out}) : Tensor();
      backend().conv2d_backward_weight(dw, dbias, dy, x, c.conv);
      const Doubles grad = doubles(dy), input = doubles(x);
      const int64_t pixels = c.batch * c.out_height * c.out_width;
      Doubles want = zeros(c.w_shape()), want_bias(size_t(c.out), 0.0);
      for_each_product(c, [&](size_t xi, size_t wi, size_t yi) { want[wi] += input[xi] * grad[yi]; });
      for (size_t i = 0; i < grad.size(); ++i) want_bias[i % size_t(c.out)] += grad[i];
      if (dw) expect_close(dw, want, tolerance(pixels), "dw");
      if (dbias) expect_close(dbias, want_bias, tolerance(pixels), "dbias");
    }
}

// Some elements at SDXL's sizes for 1024 x 1024 pixels, where the device chooses other kernels than for small images.
TEST(Conv2d, SampledAtFullSize) {
  if (test::memory().on_host()) GTEST_SKIP() << "for devices";
  const Conv2d same{1, 1, 1, 1, 1};
  const double slack = activations() == DType::f32 ? 1 : 3;  // tensor cores truncate sums
  for (const Case& c : {Case{1, 128, 128, 320, 320, 3, 3, same}, Case{1, 64, 64, 640, 640, 3, 3, same},
                        Case{1, 32, 32, 1280, 1280, 3, 3, same}, Case{1, 128, 128, 320, 320, 3, 3, {2, 1, 1, 1, 1}},
                        Case{1, 128, 128, 4, 320, 3, 3, same}, Case{1, 128, 128, 320, 4, 3, 3, same}}) {
    const Tensor x = input(c.x_shape()), w = input(c.w_shape()), bias = random({c.out}), dy = input(c.y_shape());
    const Tensor y = output(c.y_shape()), dx = output(c.x_shape()), dw = poisoned(c.w_shape());
    backend().conv2d(y, x, w, bias, {}, c.conv);
    backend().conv2d_backward_input(dx, dy, w, c.conv);
    backend().conv2d_backward_weight(dw, {}, dy, x, c.conv);
    const auto at = [](const Tensor& t, int64_t i, int64_t j, int64_t k, int64_t l) {
      return double(t.window({1}, {1}, ((i * t.dim(1) + j) * t.dim(2) + k) * t.dim(3) + l).to_vector()[0]);
    };
    for (int sample = 0; sample < 12; ++sample) {
      const int64_t o = between(0, c.out - 1), n = between(0, c.in - 1), p = between(0, 2), q = between(0, 2);
      const int64_t i = between(0, c.out_height - 1), j = between(0, c.out_width - 1);
      const int64_t h = between(0, c.height - 1), k = between(0, c.width - 1);
      double want_y = bias.data<float>()[o], want_dx = 0, want_dw = 0;
      for_each_product({1, c.height, c.width, 1, 1, 3, 3, c.conv}, [&](size_t xi, size_t wi, size_t yi) {
        const int64_t xh = int64_t(xi) / c.width, xw = int64_t(xi) % c.width, wp = int64_t(wi) / 3,
                      wq = int64_t(wi) % 3, yh = int64_t(yi) / c.out_width, yw = int64_t(yi) % c.out_width;
        if (yh == i && yw == j)
          for (int64_t m = 0; m < c.in; ++m) want_y += at(x, 0, xh, xw, m) * at(w, o, wp, wq, m);
        if (xh == h && xw == k)
          for (int64_t m = 0; m < c.out; ++m) want_dx += at(dy, 0, yh, yw, m) * at(w, m, wp, wq, n);
        if (wp == p && wq == q) want_dw += at(x, 0, xh, xw, n) * at(dy, 0, yh, yw, o);
      });
      const auto one = [](const Tensor& t, int64_t offset) { return t.window({1}, {1}, offset); };
      expect_close(one(y, (i * c.out_width + j) * c.out + o), {want_y},
                   tolerance(9 * c.in) + rounded_before_bias(want_y), "y");
      expect_close(one(dx, (h * c.width + k) * c.in + n), {want_dx}, tolerance(9 * c.out), "dx");
      expect_close(one(dw, ((o * 3 + p) * 3 + q) * c.in + n), {want_dw}, tolerance(c.out_height * c.out_width) * slack,
                   "dw");
    }
  }
}

TEST(Conv2d, EmptyBatch) {
  const Conv2d conv{1, 1, 1, 1, 1};
  const Tensor x = Tensor::empty({0, 5, 5, 3}), y = Tensor::empty({0, 5, 5, 4}), w = random({4, 3, 3, 3});
  backend().conv2d(y, x, w, {}, {}, conv);
  backend().conv2d_backward_input(x, y, w, conv);
  const Tensor dw = poisoned({4, 3, 3, 3}), dbias = poisoned({4});
  backend().conv2d_backward_weight(dw, dbias, y, x, conv);
  expect_close(dw, zeros(dw.shape()), 0, "dw");
  expect_close(dbias, zeros(dbias.shape()), 0, "dbias");
}

TEST(Conv2d, SameBitsTwice) {
  const Conv2d conv{1, 1, 1, 1, 1};
  const Tensor x = input({2, 16, 16, 64}), w = input({96, 3, 3, 64}), dy = input({2, 16, 16, 96});
  Tensor y[2], dx[2], dw[2];
  for (int i = 0; i < 2; ++i) {
    y[i] = output(dy.shape()), dx[i] = output(x.shape()), dw[i] = poisoned(w.shape());
    backend().conv2d(y[i], x, w, {}, {}, conv);
    backend().conv2d_backward_input(dx[i], dy, w, conv);
    backend().conv2d_backward_weight(dw[i], {}, dy, x, conv);
  }
  expect_same_bits(y[0], y[1], "y");
  expect_same_bits(dx[0], dx[1], "dx");
  expect_same_bits(dw[0], dw[1], "dw");
}

TEST(Conv2d, ReplaysTheSameBits) {
  const Conv2d conv{2, 0, 0, 1, 1};
  Memory& memory = test::memory();
  const Tensor x = input({2, 16, 16, 20}).to(memory), w = input({30, 3, 3, 20}).to(memory),
               bias = random({30}).to(memory), dy = input({2, 8, 8, 30}).to(memory);
  const Tensor y = output(dy.shape()).to(memory), dx = output(x.shape()).to(memory);
  const Tensor dw = poisoned(w.shape()).to(memory), dbias = poisoned({30}).to(memory);
  expect_replay(
      [&] {
        test::backend().conv2d(y, x, w, bias, {}, conv);
        test::backend().conv2d_backward_input(dx, dy, w, conv);
        test::backend().conv2d_backward_weight(dw, dbias, dy, x, conv);
      },
      {y, dx, dw, dbias});
}

}  // namespace
}  // namespace wick
