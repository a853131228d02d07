// Products of a few tokens of 16 bits, as devices' kernels for them should give: shared by the formats of weights.
#pragma once

#include <algorithm>

#include "backend/probe.h"

namespace wick::probe {

// The operands of y = x w^T + bias + residual: any of the last two may be absent, and rows may have gaps.
struct FewTokens {
  Tensor x, w, bias, residual;
  DType activations;
  int64_t bad;  // this token has a NaN in it, or -1

  FewTokens(int64_t m, const Tensor& weight, DType dtype)
      : x(random({m, weight.dim(1)}, Layout::packed, dtype)),
        w(weight),
        bias(between(0, 1) ? random({weight.dim(0)}) : Tensor()),
        residual(between(0, 1) ? random({m, weight.dim(0)}, Layout::gapped, dtype) : Tensor()),
        activations(dtype),
        bad(m > 1 ? between(0, m - 1) : -1) {
    if (bad >= 0) x.data<uint16_t>()[bad * x.dim(1) + between(0, x.dim(1) - 1)] = 0x7fff;
  }

  // Runs the product. Each value has the error of a sum in f32 of k products and `more` terms, and of one rounding to
  // the activations' dtype; where the weight is not exact, also that of rounding it. The bad token shows nowhere else.
  void expect_product(bool exact, int64_t more) const {
    const int64_t m = x.dim(0), n = w.dim(0), k = x.dim(1);
    const Tensor y = poisoned({m, n}, between(0, 1) ? Layout::packed : Layout::gapped, activations);
    backend().linear(y, x, w, bias, residual);
    const Doubles a = doubles(x), b = doubles(w), shift = bias ? doubles(bias) : Doubles(size_t(n), 0.0);
    const Doubles start = residual ? doubles(residual) : Doubles(size_t(m * n), 0.0);
    const std::vector<float> got = y.to_vector();
    const double roundoff = unit_roundoff(activations);
    for (int64_t i = 0; i < m * n; ++i) {
      const int64_t token = i / n, column = i % n;
      if (token == bad) {
        ASSERT_TRUE(std::isnan(got[size_t(i)])) << name_of(w.dtype()) << " token " << bad;
        continue;
      }
      const double begin = start[size_t(i)];
      double sum = shift[size_t(column)] + begin, sizes = std::abs(shift[size_t(column)]) + std::abs(begin);
      for (size_t j = 0; j < size_t(k); ++j) {
        const double product = a[size_t(token * k) + j] * b[size_t(column * k) + j];
        sum += product;
        sizes += std::abs(product);
      }
      const double rounding = roundoff * std::abs(sum) + (exact ? 0 : roundoff * sizes);
      ASSERT_LE(std::abs(got[size_t(i)] - sum), kEps * double(k + more) * sizes + rounding + 0x1p-24)
          << name_of(w.dtype()) << " of " << name_of(activations) << ", " << m << " x " << n << " x " << k << ", token "
          << token << " column " << column << ": got " << got[size_t(i)] << ", want " << sum;
    }
  }
};

}  // namespace wick::probe
