#include "backend/probe.h"

namespace wick {
namespace {

using namespace probe;

// c [batch, M, N] = alpha * a b + beta * c; a batch of 1 is shared.
Doubles reference(const Doubles& a, const Doubles& b, const Doubles& c, int64_t batch, int64_t m, int64_t n, int64_t k,
                  double alpha, double beta) {
  Doubles out(size_t(batch * m * n));
  const int64_t shared_a = int64_t(a.size()) == m * k ? 0 : 1, shared_b = int64_t(b.size()) == k * n ? 0 : 1;
  for (int64_t z = 0; z < batch; ++z) {
    double* const product = out.data() + z * m * n;
    add_product(product, n, {a.data() + z * shared_a * m * k, m, k, k, 1},
                {b.data() + z * shared_b * k * n, k, n, n, 1}, alpha);
    if (beta == 0) continue;
    for (int64_t i = 0; i < m * n; ++i) product[i] += beta * c[size_t(z * m * n + i)];
  }
  return out;
}

Doubles transposed(const Doubles& a, int64_t rows, int64_t cols) {
  Doubles t(a.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) t[size_t(j * rows + i)] = a[size_t(i * cols + j)];
  return t;
}

double tolerance(int64_t k) { return kEps * double(k + 4); }

TEST(Matmul, EveryLayoutScaleAndSize) {
  for (const Layout la : kLayouts)
    for (const Layout lb : kLayouts)
      for (const Layout lc : kLayouts) {
        const int64_t batch = between(1, 3), m = between(1, 40), n = between(1, 40), k = between(1, 70);
        const Tensor a = random({batch, m, k}, la), b = random({batch, k, n}, lb);
        const float alpha = 2 * rng().uniform() - 1;
        for (const float beta : {0.0f, 1.0f, -0.5f}) {
          const Tensor c = beta == 0 ? poisoned({batch, m, n}, lc) : random({batch, m, n}, lc);
          const Doubles want = reference(doubles(a), doubles(b), doubles(c), batch, m, n, k, alpha, beta);
          backend().matmul(c, a, b, alpha, beta);
          expect_close(c, want, tolerance(k), "matmul");
        }
      }
}

TEST(Matmul, RoundsToTf32OnlyWhereAllowed) {
  const int64_t m = 48, n = 64, k = 256;
  const Tensor a = random({1, m, k}), b = random({1, k, n});
  const Doubles want = reference(doubles(a), doubles(b), {}, 1, m, n, k, 1, 0);
  // A product (1/3 in the root mean square) loses at most 2^-10 of itself for each factor's 11 digits, about half of
  // that in the mean: the bound is six deviations of a sum of such products.
  const double tf32 = 6 * std::sqrt(double(k)) / 3 * std::ldexp(1, -10);
  for (const bool allowed : {true, false}) {
    const Tensor c = poisoned({1, m, n});
    backend().allow_tf32(allowed);
    backend().matmul(c, a, b, 1, 0);
    expect_close(c, want, tolerance(k) + (allowed ? tf32 : 0), "matmul");
  }
}

TEST(Matmul, BroadcastBatches) {
  const Tensor a = random({2, 1, 7, 5}), b = random({3, 5, 4}, Layout::spread), c = poisoned({2, 3, 7, 4});
  const Tensor a2 = a.window({2, 3, 7, 5}, {35, 0, 5, 1});
  const Tensor b2 = b.window({2, 3, 5, 4}, {0, b.stride()[0], b.stride()[1], b.stride()[2]});
  backend().matmul(c, a2, b2, 1, 0);
  expect_close(c, reference(doubles(a2), doubles(b2), {}, 6, 7, 4, 5, 1, 0), tolerance(5), "matmul");

  const Tensor shared = random({9, 6}), x = random({4, 3, 9}), y = poisoned({4, 3, 6});
  backend().matmul(y, x, shared.window({4, 9, 6}, {0, 6, 1}), 1, 0);
  expect_close(y, reference(doubles(x), doubles(shared), {}, 4, 3, 6, 9, 1, 0), tolerance(9), "matmul");
}

TEST(Matmul, EmptySides) {
  const Tensor c = poisoned({3, 4});
  backend().matmul(c, Tensor::empty({3, 0}), Tensor::empty({0, 4}), 1, 0);
  expect_close(c, Doubles(12, 0.0), 0, "K = 0");
  const Tensor kept = random({3, 4});
  const Doubles before = doubles(kept);
  backend().matmul(kept, Tensor::empty({3, 0}), Tensor::empty({0, 4}), 1, 1);
  expect_close(kept, before, 0, "K = 0, beta = 1");
  backend().matmul(Tensor::empty({0, 4}), Tensor::empty({0, 2}), random({2, 4}), 1, 0);
  backend().matmul(Tensor::empty({3, 0}), random({3, 2}), Tensor::empty({2, 0}), 1, 0);
  backend().matmul(Tensor::empty({0, 3, 4}), Tensor::empty({0, 3, 2}), Tensor::empty({0, 2, 4}), 1, 0);
}

TEST(Matmul, WeightsOfEveryFloat) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor dy = random({2, 5, 33}), w = random({33, 21}, Layout::gapped, dtype), dx = poisoned({2, 5, 21});
    backend().matmul(dx, dy, w.window({2, 33, 21}, {0, w.stride()[0], 1}), 1, 0);
    expect_close(dx, reference(doubles(dy), doubles(w), {}, 2, 5, 21, 33, 1, 0), tolerance(33), "matmul");
  }
}

TEST(Linear, EveryLayoutAndWeight) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const Layout lx : kLayouts)
      for (const Layout ly : kLayouts) {
        const int64_t batch = between(1, 4), t = between(1, 30), n = between(1, 90), k = between(1, 150);
        const Tensor x = random({batch, t, k}, lx), w = random({n, k}, kLayouts[rng().below(4)], dtype);
        const Tensor bias = rng().below(3) ? random({n}, rng().below(2) ? Layout::packed : Layout::spread) : Tensor();
        const Tensor residual = rng().below(2) ? random({batch, t, n}, kLayouts[rng().below(4)]) : Tensor();
        const Tensor y = poisoned({batch, t, n}, ly);
        backend().linear(y, x, w, bias, residual);
        const Doubles want = [&] {
          Doubles product = reference(doubles(x), transposed(doubles(w), n, k), {}, 1, batch * t, n, k, 1, 0);
          const Doubles b = bias ? doubles(bias) : Doubles(size_t(n), 0.0);
          const Doubles start = residual ? doubles(residual) : Doubles(product.size(), 0.0);
          for (size_t i = 0; i < product.size(); ++i) product[i] += b[i % size_t(n)] + start[i];
          return product;
        }();
        expect_close(y, want, tolerance(k), "linear");
      }
}

// Also rows of an odd number of 16-bit elements, behind an address that is a multiple of many more bytes.
TEST(Linear, RowsOfAnyLengthInTheActivationsDtype) {
  for (int round = 0; round < rounds(24); ++round) {
    const int64_t m = between(2, 70), n = between(1, 90), k = between(1, 200);
    const auto any = [](const Shape& shape) { return input(shape, kLayouts[rng().below(4)]); };
    const Tensor x = any({m, k}), w = input({n, k}), bias = between(0, 1) ? random({n}) : Tensor();
    const Tensor residual = between(0, 1) ? any({m, n}) : Tensor(), y = output({m, n}, kLayouts[rng().below(4)]);
    backend().linear(y, x, w, bias, residual);
    Doubles want = reference(doubles(x), transposed(doubles(w), n, k), {}, 1, m, n, k, 1, 0);
    const Doubles b = bias ? doubles(bias) : Doubles(size_t(n), 0.0);
    const Doubles start = residual ? doubles(residual) : Doubles(want.size(), 0.0);
    double largest = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      want[i] += b[i % size_t(n)] + start[i];
      largest = std::max(largest, std::abs(want[i]));
    }
    // The bias and the residual are below 1, and may each be added to a sum that is rounded already.
    const double rounded = activations() == DType::f32 ? 0 : 2 * (largest + 2) * unit_roundoff(activations());
    expect_close(y, want, tolerance(k) + rounded, "linear");
  }
}

TEST(Linear, BroadcastInputAndLargeWeightOfHalfFloats) {
  const int64_t k = 1100, n = 2500;  // several panels
  const Tensor x = random({1, 6, k}), w = random({n, k}, Layout::packed, DType::bf16), bias = random({n});
  const Tensor y = poisoned({2, 6, n}), half = poisoned({6, n});
  backend().linear(y, x.window({2, 6, k}, {0, k, 1}), w, bias);
  backend().linear(half, x.window({6, k}, {k, 1}), w, bias);
  Doubles want = reference(doubles(x), transposed(doubles(w), n, k), {}, 1, 6, n, k, 1, 0);
  const Doubles b = doubles(bias);
  for (size_t i = 0; i < want.size(); ++i) want[i] += b[i % size_t(n)];
  expect_close(half, want, tolerance(k), "linear");
  Doubles twice = want;
  twice.insert(twice.end(), want.begin(), want.end());
  expect_close(y, twice, tolerance(k), "linear");
}

TEST(Linear, EmptySides) {
  const Tensor y = poisoned({5, 3}), bias = random({3});
  backend().linear(y, Tensor::empty({5, 0}), Tensor::empty({3, 0}), bias);
  for (int64_t i = 0; i < 5; ++i) expect_close(y.window({3}, {1}, 3 * i), doubles(bias), 0, "K = 0 leaves the bias");
  const Tensor residual = random({5, 3});
  backend().linear(y, Tensor::empty({5, 0}), Tensor::empty({3, 0}), {}, residual);
  expect_close(y, doubles(residual), 0, "K = 0 leaves the residual");
  backend().linear(Tensor::empty({0, 3}), Tensor::empty({0, 4}), random({3, 4}), bias, Tensor::empty({0, 3}));
}

TEST(Linear, SameBitsTwice) {
  const Tensor x = random({77, 320}), w = random({640, 320}), y = poisoned({77, 640}), again = poisoned({77, 640});
  backend().linear(y, x, w, {});
  backend().linear(again, x, w, {});
  expect_same_bits(y, again, "linear");
}

}  // namespace
}  // namespace wick
