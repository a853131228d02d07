// Products with matrices in fp8_product: the other factor is rounded to codes by rows, and nothing else is rounded but
// the sums and the result.
#include "backend/probe.h"
#include "wick/core/row_formats.h"

namespace wick {
namespace {

using namespace probe;

// Rows of codes, not from the first of a matrix; sides of 16s, as tensor cores want them, or any.
Tensor random_codes(int64_t n, int64_t k) {
  const Tensor all = Tensor::empty({n + 2, k}, DType::fp8_product);
  const std::vector<float> x = random(all.shape()).to_vector();
  quantize_rows(all.data<void>(), DType::fp8_product, x.data(), n + 2, k);
  return all.window({n, k}, all.stride(), 2 * k);
}

float scale_of(const Tensor& w, int64_t row) {
  const View v = w.view();
  const char* const codes = v.as<char>() + byte_offset(v, row * v.stride[0]);
  return *reinterpret_cast<const float*>(codes + row_layout(w.dtype(), w.dim(1)).scales);
}

// Rows rounded by the rule, after each column was multiplied by a scale, if there are any.
Doubles rounded(const Tensor& x, const std::vector<float>& column_scales = {}) {
  std::vector<float> values = x.to_vector();
  const size_t width = size_t(x.dim(-1));
  Doubles out(values.size());
  for (size_t begin = 0; begin < values.size(); begin += width) {
    float largest = 0;
    for (size_t i = 0; i < width; ++i) {
      if (!column_scales.empty()) values[begin + i] *= column_scales[i];
      largest = std::max(largest, std::abs(values[begin + i]));
    }
    const Fp8Scale s = fp8_scale(largest);
    for (size_t i = 0; i < width; ++i)
      out[begin + i] = double(s.scale) * double(e4m3_to_f32(f32_to_e4m3(values[begin + i] * s.inverse)));
  }
  return out;
}

Doubles magnitudes(Doubles x) {
  for (double& v : x) v = std::abs(v);
  return x;
}

double largest(const Doubles& x) {
  const Doubles all = magnitudes(x);
  return all.empty() ? 0 : *std::max_element(all.begin(), all.end());
}

// A linear and its dx in double precision.
struct Reference {
  int64_t m, n, k;
  Doubles ws, ones_ws, y, dx;
  double y_tolerance, dx_tolerance;

  Reference(const Tensor& x, const Tensor& dy, const Tensor& w)
      : m(x.numel() / x.dim(-1)), n(w.dim(0)), k(w.dim(1)), ws(doubles(w)), ones_ws(ws) {
    std::vector<float> scales;
    for (int64_t i = 0; i < n; ++i) scales.push_back(scale_of(w, i));
    for (int64_t i = 0; i < n * k; ++i) ones_ws[size_t(i)] /= double(scales[size_t(i / k)]);
    const Doubles xs = rounded(x), ds = rounded(dy, scales);
    y = times(by_rows(xs, m, k), by_rows(ws, n, k).transposed());
    dx = times(by_rows(ds, m, n), by_rows(ones_ws, n, k));
    const Doubles x_sizes = magnitudes(xs), d_sizes = magnitudes(ds), w_sizes = magnitudes(ws),
                  codes = magnitudes(ones_ws);
    const double y_terms = largest(times(by_rows(x_sizes, m, k), by_rows(w_sizes, n, k).transposed()));
    const double dx_terms = largest(times(by_rows(d_sizes, m, n), by_rows(codes, n, k)));
    y_tolerance = tolerance(k, y_terms, largest(y));
    dx_tolerance = tolerance(n, dx_terms, largest(dx));
  }

  // Tensor cores cut each product of codes 13 bits behind the first bit of the largest number that they add, the sum so
  // far among them: that is depth errors of up to 2^-13 of a sum of about sqrt(depth) products. They add up like a
  // walk, whose 4.5 standard deviations, the largest of 10^5 elements, are 2^-12 of the sum of magnitudes. What they
  // add up is rounded to the dtype of activations before it is scaled where a device cannot scale it at once.
  static double tolerance(int64_t depth, double terms, double sum) {
    const double sums = on_cpu() ? kEps * std::sqrt(double(depth) + 8) : 0x1p-12;
    return sums * terms + (activations() == DType::f32 ? 0 : 2 * unit_roundoff(activations()) * sum);
  }
};

struct Case {
  int64_t m = between(1, 150), n, k;
  Tensor w, x, dy;

  explicit Case(bool in_16s)
      : n(in_16s ? 16 * between(1, 20) : 2 * between(1, 150)),
        k(in_16s ? 16 * between(1, 40) : between(1, 600)),
        w(random_codes(n, k)),
        x(input({m, k}, kLayouts[rng().below(4)])),
        dy(input({m, n}, kLayouts[rng().below(4)])) {}
};

void for_cases(const std::function<void(const Case&, const Reference&)>& f) {
  for (int round = 0; round < rounds(8); ++round) {
    const Case c(round % 4 != 3);
    f(c, Reference(c.x, c.dy, c.w));
  }
}

Layout any_layout() { return kLayouts[rng().below(4)]; }

Doubles with_rest(Doubles y, const Tensor& bias, const Tensor& residual) {
  const Doubles shift = bias ? doubles(bias) : Doubles(), start = residual ? doubles(residual) : Doubles();
  for (size_t i = 0; i < y.size(); ++i) y[i] += (bias ? shift[i % shift.size()] : 0) + (residual ? start[i] : 0);
  return y;
}

TEST(Fp8, Linear) {
  for_cases([](const Case& c, const Reference& want) {
    const Tensor bias = between(0, 1) ? random({c.n}) : Tensor(),
                 residual = between(0, 1) ? input({c.m, c.n}, any_layout()) : Tensor();
    const Tensor y = output({c.m, c.n}, any_layout());
    backend().linear(y, c.x, c.w, bias, residual);
    const double more = activations() == DType::f32 ? 0 : 4 * unit_roundoff(activations());  // of bias and residual
    expect_close(y, with_rest(want.y, bias, residual), want.y_tolerance + more, "y");
  });
}

TEST(Fp8, Dx) {
  for_cases([](const Case& c, const Reference& want) {
    const Tensor dx = output({c.m, c.k}, any_layout());
    backend().matmul(dx, c.dy, c.w, 1, 0);
    expect_close(dx, want.dx, want.dx_tolerance, "dx");
  });
}

// Each row of a batch is rounded by a scale of its own.
TEST(Fp8, Batch) {
  const Case c(true);
  const Tensor x = input({3, 5, c.k}), dy = input({3, 5, c.n}), y = output({3, 5, c.n});
  backend().linear(y, x, c.w, {}, {});
  const Reference want(x, dy, c.w);
  expect_close(y, want.y, want.y_tolerance, "y");
}

TEST(Fp8, Gated) {
  for_cases([](const Case& c, const Reference& want) {
    const Tensor y = output({c.m, c.n / 2}), whole = output({c.m, c.n});
    backend().gated_linear(y, c.x, c.w, {});
    backend().linear(whole, c.x, c.w, {}, {});
    const Tensor gated = output({c.m, c.n / 2});
    backend().swiglu(gated, whole);
    expect_same_bits(y, gated, "swiglu");
    EXPECT_GT(want.y.size(), 0u);
  });
}

// The adapter's part is in the dtype of activations, from x and dy as they are.
TEST(Fp8, Lora) {
  for_cases([](const Case& c, const Reference& want) {
    const int64_t r = between(1, 40);
    const float scale = 0.5f;
    const Tensor down = random({r, c.k}), up = random({c.n, r}), bias = random({c.n});
    const LoraFactors lora{down, {{up, 0, 0, scale}}};
    const Doubles xs = doubles(c.x), dys = doubles(c.dy), downs = doubles(down), ups = doubles(up);
    const Doubles s = times(by_rows(xs, c.m, c.k), by_rows(downs, r, c.k).transposed());
    const Doubles ds = times(by_rows(dys, c.m, c.n), by_rows(ups, c.n, r), double(scale));
    Doubles y = with_rest(want.y, bias, {}), dx = want.dx;
    add_product(y.data(), c.n, by_rows(s, c.m, r), by_rows(ups, c.n, r).transposed(), double(scale));
    add_product(dx.data(), c.k, by_rows(ds, c.m, r), by_rows(downs, r, c.k));
    // Factors, s and ds are rounded to the activations' dtype: beside the sum's own error, one of its terms.
    const double u = activations() == DType::f32 ? kEps : unit_roundoff(activations());
    const auto of_adapter = [&](const Doubles& low, double size) { return 4 * u * (double(r) * largest(low) + size); };

    const Tensor got = output({c.m, c.n}), got_s = output({c.m, r});
    backend().lora_linear({.y = got, .s = got_s, .x = c.x, .w = c.w, .bias = bias, .lora = lora});
    expect_close(got, y, want.y_tolerance + of_adapter(s, largest(y)), "y");
    const Tensor dx_got = output({c.m, c.k}), ddown = poisoned({r, c.k}), dup = poisoned({c.n, r});
    backend().lora_linear_backward({.s = got_s, .x = c.x, .w = c.w, .lora = lora},
                                   {.dx = dx_got, .ddown = ddown, .dups = {dup}, .dy = c.dy});
    expect_close(dx_got, dx, want.dx_tolerance + of_adapter(ds, largest(dx)), "dx");
    const auto of_factor = [&](double low) { return 4 * u * double(c.m) * low; };
    expect_close(ddown, times(by_rows(ds, c.m, r).transposed(), by_rows(xs, c.m, c.k)), of_factor(largest(ds)),
                 "ddown");
    expect_close(dup, times(by_rows(dys, c.m, c.n).transposed(), by_rows(s, c.m, r), double(scale)),
                 of_factor(largest(s)), "dup");
  });
}

// A row of zeros gives the bias; a row with a number that is not finite gives none, and no other row does.
TEST(Fp8, RowsOfTheirOwn) {
  for (const float odd : {0.0f, INFINITY, NAN}) {
    const int64_t m = 5, n = 32, k = 48;
    const Tensor w = random_codes(n, k), bias = random({n}), y = output({m, n}), x = input({m, k});
    for (int64_t i = 0; i < k; ++i) {
      const float value = odd == 0 ? 0 : i == 7 ? odd : 1;
      if (x.dtype() == DType::f32) x.data<float>()[2 * k + i] = value;
      if (x.dtype() == DType::bf16) x.data<uint16_t>()[2 * k + i] = f32_to_bf16(value);
      if (x.dtype() == DType::f16) x.data<uint16_t>()[2 * k + i] = f32_to_f16(value);
    }
    backend().linear(y, x, w, bias, {});
    const std::vector<float> got = y.to_vector(), shift = bias.to_vector();
    for (int64_t i = 0; i < m * n; ++i) {
      const float value = got[size_t(i)];
      if (i / n == 2 && odd == 0) {
        EXPECT_NEAR(value, shift[size_t(i % n)], unit_roundoff(x.dtype()));
      } else {
        EXPECT_EQ(std::isfinite(value), i / n != 2) << odd << " at " << i;
      }
    }
  }
}

TEST(Fp8, Replays) {
  const int64_t m = 70, n = 96, k = 160;
  Memory& memory = test::memory();
  const Tensor w = random_codes(n, k), codes = Tensor::empty({n, k}, DType::fp8_product, memory);
  memory.write(codes.view().data, w.view().data, size_t(n * row_bytes(DType::fp8_product, k)));
  const Tensor x = input({m, k}).to(memory), dy = input({m, n}).to(memory);
  const Tensor y = output({m, n}).to(memory), dx = output({m, k}).to(memory);
  const auto work = [&] {
    test::backend().linear(y, x, codes, {}, {});
    test::backend().matmul(dx, dy, codes, 1, 0);
  };
  expect_replay(work, {y, dx});
}

}  // namespace
}  // namespace wick
