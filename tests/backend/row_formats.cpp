// Quantised rows on a backend: the bits of core/row_formats.h, and products that are those of the decoded weight.
#include "wick/core/row_formats.h"

#include "backend/probe.h"

namespace wick {
namespace {

using namespace probe;

constexpr DType kFormats[] = {DType::fp8, DType::fp8_block,  DType::int8,
                              DType::nf4, DType::nf4_double, DType::fp8_product};

// Those of fp8_product are of codes (fp8.cpp).
constexpr DType kDecoded[] = {DType::fp8, DType::fp8_block, DType::int8, DType::nf4, DType::nf4_double};

// Also rows of 8-bit codes that are no whole words.
int64_t width_of(DType dtype, int64_t most) {
  return row_format(dtype).run == 0 ? between(1, 64 * most) : between(1, most) * row_format(dtype).run;
}

Tensor random_rows(const Shape& shape, DType dtype) {
  const Tensor w = Tensor::empty(shape, dtype);
  const std::vector<float> x = random(shape).to_vector();
  quantize_rows(w.data<void>(), dtype, x.data(), shape[0], shape[1]);
  return w;
}

size_t bytes_in(const Tensor& w) { return size_t(w.dim(0) * row_bytes(w.dtype(), w.dim(1))); }

TEST(RowFormats, DecodeToTheirElements) {
  for (const DType dtype : kFormats)
    for (const DType to : {DType::f32, DType::bf16, DType::f16})
      for (const Layout layout : kLayouts) {
        const Tensor all = random_rows({between(3, 40), width_of(dtype, 6)}, dtype);
        const Tensor w = all.window({all.dim(0) - 2, all.dim(1)}, all.stride(), all.dim(1));  // not from the first row
        const Tensor y = poisoned(w.shape(), layout, to), want = Tensor::empty(w.shape(), to);
        backend().copy(y, w);
        cpu_backend().copy(want, Tensor::of(w.to_vector(), w.shape()));
        expect_same_bits(y, want, "decoded");
      }
}

TEST(RowFormats, CopyAsTheyLie) {
  for (const DType dtype : kFormats) {
    const Tensor w = random_rows({between(1, 9), width_of(dtype, 4)}, dtype), y = Tensor::empty(w.shape(), dtype);
    backend().copy(y, w);
    EXPECT_EQ(std::memcmp(y.data<void>(), w.data<void>(), bytes_in(w)), 0) << name_of(dtype);
  }
}

TEST(RowFormats, QuantiseRowsOfAnyLayout) {
  for (const DType dtype : kFormats)
    for (const DType from : {DType::f32, DType::bf16, DType::f16})
      for (const Layout layout : kLayouts) {
        const Tensor x = random({between(1, 300), width_of(dtype, 6)}, layout, from);
        const Tensor got = Tensor::empty(x.shape(), dtype), want = Tensor::empty(x.shape(), dtype);
        for (const Tensor& t : {got, want}) std::memset(t.data<void>(), 0, bytes_in(t));
        backend().copy(got, x);
        const std::vector<float> values = x.to_vector();
        quantize_rows(want.data<void>(), dtype, values.data(), x.dim(0), x.dim(1));
        EXPECT_EQ(got.to_vector(), want.to_vector()) << name_of(dtype);
        EXPECT_EQ(std::memcmp(got.data<void>(), want.data<void>(), size_t(x.dim(1) * row_format(dtype).bits / 8)), 0);
      }
}

// The same call with the weight decoded beforehand has the same bits: the decoded one is rounded to what the device
// computes with, and goes the same way. (The CPU has another one for one row of floats.)
TEST(RowFormats, ProductsAreThoseOfTheDecodedWeight) {
  const DType activations = probe::activations();
  for (const DType dtype : kDecoded)
    for (int round = 0; round < rounds(4); ++round) {
      const int64_t m = between(on_cpu() ? 2 : 1, 40), n = 2 * between(1, 40), k = width_of(dtype, 3),
                    r = between(1, 12);
      const Tensor w = random_rows({n, k}, dtype), decoded = Tensor::empty({n, k}, activations);
      cpu_backend().copy(decoded, Tensor::of(w.to_vector(), w.shape()));
      const Tensor x = input({m, k}, kLayouts[rng().below(4)]), dy = input({m, n}, kLayouts[rng().below(4)]);
      const Tensor bias = between(0, 1) ? random({n}) : Tensor(), residual = between(0, 1) ? input({m, n}) : Tensor();
      const Tensor down = random({r, k}), up = random({n, r});
      const LoraFactors lora{down, {{up, 0, 0, 0.5f}}};
      const auto same = [&](const char* what, const Shape& shape, const auto& call) {
        const Tensor got = output(shape, Layout::gapped), want = output(shape, Layout::gapped);
        call(got, w);
        call(want, decoded);
        expect_same_bits(got, want, what);
      };
      same("linear", {m, n}, [&](const View& y, const View& by) { backend().linear(y, x, by, bias, residual); });
      same("gated", {m, n / 2}, [&](const View& y, const View& by) { backend().gated_linear(y, x, by, bias); });
      same("matmul", {m, k}, [&](const View& y, const View& by) { backend().matmul(y, dy, by, 1, 0); });
      same("LoRA", {m, n}, [&](const View& y, const View& by) {
        backend().lora_linear({.y = y, .x = x, .w = by, .bias = bias, .lora = lora, .residual = residual});
      });
      const Tensor s = input({m, r});
      same("LoRA's dx", {m, k}, [&](const View& dx, const View& by) {
        const Tensor ddown = poisoned({r, k}), dup = poisoned({n, r});
        backend().lora_linear_backward({.s = s, .x = x, .w = by, .lora = lora},
                                       {.dx = dx, .ddown = ddown, .dups = {dup}, .dy = dy});
      });
    }
}

}  // namespace
}  // namespace wick
